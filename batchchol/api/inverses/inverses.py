"""Inverses of matrices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from batchchol.api.arguments import Wanted, check_threads, is_general, square_matrices
from batchchol.api.arrays.foreign_arrays import takes_foreign
from batchchol.api.failures import raise_failures, raise_singular
from batchchol.api.inverses.inversions import Inverted, inverted
from batchchol.api.repairs import check_jitter
from batchchol.api.results import AnyInverse, Inverse, InverseLogDeterminant, inverse_of
from batchchol.api.solves.log_determinants import told_by_factors
from batchchol.api.solves.solves import cho_solve, solve_ex
from batchchol.batches.batch import Batch
from batchchol.batches.checks import flag
from kernelgen import KernelSpec


def inv(
    a: Batch | ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
    overwrite_a: bool = False,
    jitter: float | str | None = None,
) -> Any:
    """Inverses of matrices, of symmetric positive definite ones factored and inverted in one kernel.

    Parameters
    ----------
    a : Batch, or array_like of shape (..., n, n), float32 or float64
        As for `solve`, as are all other parameters.
    spec : KernelSpec, optional
        The kernel to use, of the operation "poinv".
    overwrite_a : bool
        Whether the memory of `a` may be used: the inverses of an array of the host are there if a kernel finds them.
    out : array or Batch, optional
        As for `solve`; or, for a batch in a packed layout, a batch of the same layout, itself or another one: one
        triangle of each inverse is written there, without `jitter` and `logdet`.

    Returns
    -------
    ndarray, shape (..., n, n)
        The inverses, both triangles, which are equal where a kernel inverts; or `out`, a batch marked with its
        triangle. Of a batch (batch, n, n); of matrices on a GPU an array of the same
        library.

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

    Examples
    --------
    >>> print(batchchol.inv(np.array([[2.0, 1.0], [1.0, 1.0]])).round(6))
    [[ 1. -1.]
     [-1.  2.]]
    """
    inverse, info, *_ = inv_ex(
        a,
        assume_a=assume_a,
        upper=upper,
        backend=backend,
        spec=spec,
        math=math,
        threads=threads,
        stream=stream,
        out=out,
        overwrite_a=overwrite_a,
        jitter=jitter,
    )
    if assume_a == "gen":
        raise_singular(info, "inv_ex")
    else:
        raise_failures(info, None if overwrite_a or out is not None else a, upper, "inv_ex")
    return inverse


@takes_foreign(Inverse, InverseLogDeterminant)
def inv_ex(
    a: Batch | ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
    overwrite_a: bool = False,
    jitter: float | str | None = None,
    logdet: bool = False,
) -> AnyInverse:
    """Inverses and LAPACK's info of each matrix, as of `solve_ex`: where it is not 0 an inverse has no meaning.

    Parameters
    ----------
    logdet : bool
        Return the logarithms of the determinants as well, as `solve_ex` does. A `spec` is of the operation "poinvdet"
        then.

    Returns
    -------
    Inverse
        inverse : ndarray, shape (..., n, n); info : ndarray of int32, shape (...). On a GPU arrays of the same
        library.
    RepairedInverse, InverseLogDeterminant, RepairedInverseLogDeterminant
        With `jitter` and `logdet`: added and logabsdet, as `solve_ex` returns them.
    """
    general = is_general(assume_a, upper=upper, jitter=jitter, logdet=logdet)
    check_threads(threads)
    check_jitter(jitter)
    taken, determined = flag("overwrite_a", overwrite_a), flag("logdet", logdet)
    if not (isinstance(a, Batch) or hasattr(a, "__cuda_array_interface__")):
        a = square_matrices("a", a)
    op = "poinvdet" if determined else "poinv"
    wanted = Wanted(op, "a", "matrices", flag("upper", upper), spec, math, threads, stream, out, False, jitter)
    found = None if general else inverted(a, backend, wanted._replace(overwrite_a=taken))
    if found is not None:
        return inverse_of(*found)
    if spec is not None and not general:
        works = "where there are no matrices, or they are larger than kernels take"
        raise ValueError(f"spec: got a kernel of {spec.problem.op}, expected None {works}")
    asked: dict[str, Any] = {"upper": upper, "backend": backend, "math": math, "threads": threads, "stream": stream}
    more: dict[str, Any] = {"jitter": jitter, "logdet": determined} if not general else {"spec": spec}
    solved: Any = solve_ex(a, _identity(a), assume_a=assume_a, out=out, **asked, **more)
    added, logs = getattr(solved, "added", None), getattr(solved, "logabsdet", None)
    return inverse_of(solved.x, solved.info, added, logs)


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
    upper, backend, math, threads, stream
        As for `cho_solve`.
    out : array or Batch, optional
        As for `inv`.

    Returns
    -------
    ndarray, shape (..., n, n)
        The inverses, both triangles, which are equal, or `out`. Of a batch (batch, n, n); of factors on a GPU
        an array of the same library, still being written on the stream.

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
    wanted = Wanted("potri", "L", "factors", flag("upper", upper), None, math, threads, stream, out)
    return _by_factors(L, backend, wanted)[0]


@takes_foreign(InverseLogDeterminant)
def cho_inverse_ex(
    L: Batch | ArrayLike,
    *,
    upper: bool = False,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
) -> InverseLogDeterminant:
    """`cho_inverse`, the info of each factor and the logarithm of the determinant of A = L L^T.

    Returns
    -------
    InverseLogDeterminant
        inverse : ndarray, shape (..., n, n); info : ndarray of int32, shape (...), LAPACK's of potri: 0, or k where
        element k of the diagonal, counted from 1, is the first that is 0 or NaN; logabsdet, of the shape of info and
        the factors' dtype, NaN where an info is not 0. On a GPU arrays of the same library.
    """
    wanted = Wanted("potridet", "L", "factors", flag("upper", upper), None, math, threads, stream, out)
    inverse, info, _, logs = _by_factors(L, backend, wanted)
    return InverseLogDeterminant(inverse, info, logs)


def _by_factors(l: Any, backend: str | None, wanted: Wanted) -> Inverted:
    """The inverses by factors, and if asked for what else they tell."""
    check_threads(wanted.threads)
    if not (isinstance(l, Batch) or hasattr(l, "__cuda_array_interface__")):
        l = square_matrices("L", l)
    found = inverted(l, backend, wanted)
    if found is not None:
        return found
    asked: dict[str, Any] = {name: getattr(wanted, name) for name in ("upper", "math", "threads", "stream", "out")}
    # Inverses may be written over the factors.
    info, logs = told_by_factors(l, wanted) if wanted.op == "potridet" else (None, None)
    return Inverted(cho_solve(l, _identity(l), backend=backend, **asked), info, None, logs)


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
