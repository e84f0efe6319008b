"""Inverses of matrices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from batchchol.api.arguments import Wanted, check_threads, is_general, square_matrices
from batchchol.api.failures import raise_failures, raise_singular
from batchchol.api.foreign_arrays import takes_foreign
from batchchol.api.inversions import inverted
from batchchol.api.solves import cho_solve, solve_ex
from batchchol.batches.batch import Batch
from batchchol.batches.checks import flag


class Inverse(NamedTuple):
    """Inverses, (..., n, n), and the info of each matrix, (...), int32: where the matrices were."""

    inverse: Any
    info: Any


def inv(
    a: Batch | ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
) -> Any:
    """Inverses of matrices, of symmetric positive definite ones factored and inverted in one kernel.

    Parameters
    ----------
    a : Batch, or array_like of shape (..., n, n), float32 or float64
        As for `solve`, as are all other parameters.

    Returns
    -------
    ndarray, shape (..., n, n)
        The inverses, both triangles, which are equal where a kernel inverts; or `out`. Of a batch (batch, n, n); of
        matrices on a GPU a pycuda.gpuarray.GPUArray.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix is not positive definite, or singular, as `solve` does, with its other errors.

    Notes
    -----
    |A X - I| is at most (4 n + 1) u |L| |L^T| |L^-T| |L^-1|, to first order (Higham, "Accuracy and Stability of
    Numerical Algorithms", section 14.3.4). Where no kernel does both, on GPUs above the orders whose triangles fit
    registers and on CPUs above 128, and for general matrices the inverses are the solutions for the columns of the
    identity, and of symmetric matrices the two triangles agree up to rounding.
    """
    inverse, info = inv_ex(
        a,
        assume_a=assume_a,
        upper=upper,
        backend=backend,
        math=math,
        threads=threads,
        stream=stream,
        out=out,
    )
    if assume_a == "gen":
        raise_singular(info, "inv_ex")
    else:
        raise_failures(info, a if out is None else None, upper, "inv_ex")
    return inverse


@takes_foreign(Inverse)
def inv_ex(
    a: Batch | ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
) -> Inverse:
    """Inverses and LAPACK's info of each matrix, as of `solve_ex`: where it is not 0 an inverse has no meaning.

    Returns
    -------
    Inverse
        inverse : ndarray, shape (..., n, n); info : ndarray of int32, shape (...). GPUArrays of matrices on a GPU.
    """
    general = is_general(assume_a, upper=upper)
    check_threads(threads)
    if not (isinstance(a, Batch) or hasattr(a, "__cuda_array_interface__")):
        a = square_matrices("a", a)
    wanted = Wanted("poinv", "a", "matrices", flag("upper", upper), None, math, threads, stream, out)
    found = None if general else inverted(a, backend, wanted)
    if found is not None:
        return Inverse(*found)
    asked: dict[str, Any] = {"upper": upper, "backend": backend, "math": math, "threads": threads, "stream": stream}
    inverse, info, *_ = solve_ex(a, _identity(a), assume_a=assume_a, out=out, **asked)
    return Inverse(inverse, info)


@takes_foreign()
def cho_inverse(
    L: Batch | ArrayLike,
    *,
    upper: bool = False,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
) -> Any:
    """Inverses of matrices A = L L^T, given their Cholesky factors L, as torch.cholesky_inverse returns them.

    Parameters
    ----------
    L : Batch, or array_like of shape (..., n, n), float32 or float64
        The factors, such as `factor(batch).L` or `cholesky(a)`. Only the lower triangle is used, or the upper one.
    upper, backend, math, threads, stream, out
        As for `cho_solve`.

    Returns
    -------
    ndarray, shape (..., n, n)
        The inverses, both triangles, which are equal, or `out`. Of a batch (batch, n, n); of factors on a GPU a
        pycuda.gpuarray.GPUArray, which is still being written on the stream.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or does not belong to the others; the other errors are those of `cho_solve`.

    Notes
    -----
    LAPACK's potri: the factor is inverted, and X = L^-T L^-1. Factors are not checked: of one whose diagonal has a
    zero, such as that of a matrix with an info other than 0, the inverse is infinite, NaN or meaningless; its
    neighbours are as they would be without it.
    """
    check_threads(threads)
    if not (isinstance(L, Batch) or hasattr(L, "__cuda_array_interface__")):
        L = square_matrices("L", L)
    wanted = Wanted("potri", "L", "factors", flag("upper", upper), None, math, threads, stream, out)
    found = inverted(L, backend, wanted)
    if found is not None:
        return found.inverse
    asked: dict[str, Any] = {"upper": upper, "backend": backend, "math": math, "threads": threads, "stream": stream}
    return cho_solve(L, _identity(L), out=out, **asked)


def _identity(a: Any) -> Any:
    """An identity that is broadcast with the matrices: of more axes than one vector for each has."""
    if isinstance(a, Batch):
        n, dtype, outer, on_gpu = a.n, a.dtype, 1, a.backend == "cuda"
    else:
        on_gpu = not isinstance(a, np.ndarray)
        described = a.__cuda_array_interface__ if on_gpu else None
        shape = tuple(described["shape"]) if described else a.shape
        dtype = np.dtype(described["typestr"]) if described else a.dtype
        n, outer = (shape or (0,))[-1], max(len(shape) - 2, 0)
    shape = (1,) * outer + (n, n)
    if not on_gpu:
        return np.eye(n, dtype=dtype).reshape(shape)
    from batchchol.backends.cuda.device import device

    return _there(device(), n, dtype).reshape(shape)


@lru_cache(maxsize=256)
def _there(gpu: object, n: int, dtype: np.dtype[Any]) -> Any:
    """An identity on a GPU, kept: a copy there would wait for the work that is under way."""
    from batchchol.backends.cuda import memory

    return memory.to_device(np.eye(n, dtype=dtype), "an identity")
