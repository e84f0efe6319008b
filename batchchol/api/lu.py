"""LU factorizations of general matrices, and solutions by them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api.arguments import Wanted, check_on_gpu, check_threads, square_matrices
from batchchol.api.arrays.foreign_arrays import takes_foreign
from batchchol.api.failures import raise_singular
from batchchol.api.solves.device_solves import located
from batchchol.api.solves.solves import solutions
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import DEFAULT_BACKEND, chosen_backend, get_backend, lapack_lu
from batchchol.backends.base import Form
from batchchol.batches.batch import Batch
from batchchol.batches.checks import flag
from batchchol.batches.host_memory import aligned_empty
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import chosen_kernel, kernel_choice
from kernelgen import MAX_N, KernelSpec, Layout

_CANONICAL, _INT32 = Layout.canonical(), np.dtype(np.int32)


class LU(NamedTuple):
    """Factors in one array or batch, L below the diagonal, where it has ones, and U; and LAPACK's pivots, int32."""

    LU: Any
    pivots: Any


class LUInfo(NamedTuple):
    """`LU`, and the info of each matrix, int32: where the matrices were."""

    LU: Any
    pivots: Any
    info: Any


def lu_factor(
    a: Batch | ArrayLike,
    *,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    overwrite_a: bool = False,
) -> LU:
    """LU factorizations P A = L U with partial pivoting, for square matrices of any kind.

    Parameters
    ----------
    a : Batch, or array_like of shape (..., n, n), float32 or float64
        The matrices; a batch in any layout. Kernels are for orders up to 128; larger ones LAPACK factors on the
        CPU, and a GPU to order 8192, by panels and cuBLAS.
    backend : str, optional
        For arrays of the host, "cpu" or "cuda"; by default BATCHCHOL_BACKEND, else "cpu". What "cuda" is to factor is
        copied to the GPU and back.
    spec : KernelSpec, optional
        The kernel to use, of the operation "getrf".
    math : str, optional
        "ieee", the default, or "fast", which multiplies by reciprocals of pivots and may take denormals for zeros.
    threads : int, optional
        How many cores to use at most; by default BATCHCHOL_THREADS, else all of them.
    stream : optional
        As for `factor`, for matrices on a GPU.
    overwrite_a : bool
        Whether the factors may go where the matrices are, if that is an array or a batch that holds them as they are.

    Returns
    -------
    LU
        LU : as `a`, an array (..., n, n) or a batch in its layout; pivots : (..., n), of a batch (batch, n), int32.
        In step k, counted from 0, rows k and pivots[k] - 1 change places: pivots count from 1, as those of LAPACK and
        torch.linalg.lu_factor (scipy.linalg.lu_factor counts from 0). On a GPU arrays of the same library.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a pivot is exactly zero; `lu_factor_ex` returns the factors of such a matrix too. On a GPU the call waits
        for the work to know.
    TypeError, ValueError
        If an argument is not as above, or does not belong to the others.
    UnknownBackend, BackendUnavailable, CompilerNotFound, CompileError, CacheError, OutOfMemory, SettingError,
    DeviceError
        As `cholesky` does.

    Warns
    -----
    NoCompilerWarning
        As `cholesky` does.

    Notes
    -----
    |P A - L U| is at most n u |L| |U|, componentwise, with u the unit roundoff (Higham, "Accuracy and Stability of
    Numerical Algorithms", theorem 9.3), where all numbers on the way are normal ones. Of elements of one size the
    first becomes the pivot, as in reference LAPACK.

    Examples
    --------
    >>> lu, pivots = batchchol.lu_factor(np.array([[0.0, 1.0], [2.0, 4.0]]))
    >>> print(lu, pivots)
    [[2. 4.]
     [0. 1.]] [2 2]
    """
    lu, pivots, info = lu_factor_ex(
        a, backend=backend, spec=spec, math=math, threads=threads, stream=stream, overwrite_a=overwrite_a
    )
    raise_singular(info, "lu_factor_ex")
    return LU(lu, pivots)


@takes_foreign(LUInfo)
def lu_factor_ex(
    a: Batch | ArrayLike,
    *,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    overwrite_a: bool = False,
) -> LUInfo:
    """LU factorizations and LAPACK's info of each matrix; never raises because of the matrices' values.

    As `lu_factor`, with its other errors, but info[m] is 0, or k where pivot k of matrix m is exactly zero, the first
    that is: the factorization is complete, and solving by it divides by zero. On a GPU the call returns before the
    work is done.

    Returns
    -------
    LUInfo
        LU, pivots : as of `lu_factor`; info : int32, of the shape of `a` without its last two axes, of a batch
        (batch,).
    """
    in_place = flag("overwrite_a", overwrite_a)
    check_threads(threads)
    wanted = Wanted("getrf", "a", "matrices", False, spec, math, threads, stream)
    if isinstance(a, Batch):
        wanted = wanted.of_batch(a, backend)
        return _of_batch(a, wanted, in_place) if a.backend == "cpu" else _there(a, wanted, in_place)
    if hasattr(a, "__cuda_array_interface__"):
        check_on_gpu(backend)
        return _there(a, wanted, in_place)
    return _of_array(a, chosen_backend(backend) or DEFAULT_BACKEND, wanted, in_place)


@takes_foreign()
def lu_solve(
    LU: Batch | ArrayLike,
    pivots: ArrayLike,
    b: ArrayLike,
    *,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    out: Any = None,
    overwrite_b: bool = False,
) -> Any:
    """The solutions x of A x = b, given the LU factorizations of the matrices A.

    Parameters
    ----------
    LU, pivots : as `lu_factor` returns them
        The factors, (..., n, n) or a batch, and the pivots, (..., n) or (batch, n), int32, counted from 1.
    b : array_like, shape (n,), (..., n) or (..., n, nrhs)
        The right-hand sides, of the factors' dtype, as for `solve`.
    backend, threads, stream, out, overwrite_b : optional
        As for `solve`.
    spec : KernelSpec, optional
        The kernel to use, of the operation "getrs".
    math : str, optional
        "ieee", the default, or "fast", which may take denormals for zeros.

    Returns
    -------
    ndarray, of the shape of b, broadcast
        The solutions, or `out`; of factors on a GPU an array of the same library.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or does not belong to the others; on the host also if a pivot of step k is not
        from k to n.
    UnknownBackend, BackendUnavailable, CompilerNotFound, CompileError, CacheError, OutOfMemory, SettingError,
    DeviceError
        As `cholesky` does.

    Notes
    -----
    The componentwise backward error is at most (3 n + 1) u P^T |L| |U| |x|, with u the unit roundoff (Higham,
    "Accuracy and Stability of Numerical Algorithms", theorem 9.4), where all numbers on the way are normal ones.
    Factors are not checked: by those of a singular matrix the solution is infinite or NaN.
    """
    taken = flag("overwrite_b", overwrite_b)
    if pivots is None:
        raise TypeError("pivots: got None, expected those that lu_factor returns beside the factors")
    wanted = Wanted("getrs", "LU", "factors", False, spec, math, threads, stream, out, taken, pivots=pivots)
    return solutions(LU, b, backend, wanted)[0]


def _of_array(a: ArrayLike, backend: str, wanted: Wanted, in_place: bool) -> LUInfo:
    """LU factorizations of an array (..., n, n) of the host."""
    given = square_matrices("a", a)
    *outer, n, _ = given.shape
    wanted.check_array(n, given.dtype)
    wanted.check_no_stream("arrays of the host have been factored when the call returns")
    count = prod(outer)
    dense = given.reshape(count, n, n)
    usable = (in_place or not np.may_share_memory(given, np.asarray(a))) and given.flags.writeable
    lu = dense if usable else aligned_empty(dense.shape, dense.dtype, f"an array of shape {given.shape}")
    pivots, info = np.empty((count, n), np.int32), np.zeros(count, np.int32)
    if backend == "cuda":
        _copied_there(dense, lu, pivots, info, wanted)
    elif dense.size:
        info[...] = _factor(
            lambda threads: lapack_lu.getrf(dense, lu, pivots, threads),
            Batch.over_checked(dense, n, count, _CANONICAL),
            Batch.over_checked(lu, n, count, _CANONICAL),
            pivots,
            wanted,
        )
    return LUInfo(lu.reshape(given.shape), pivots.reshape(*outer, n), info.reshape(outer))


def _of_batch(batch: Batch, wanted: Wanted, in_place: bool) -> LUInfo:
    """LU factorizations of a batch of the host."""
    wanted.check_no_stream("backend 'cpu' has none")
    lu = batch if in_place and batch.writeable else batch.like()
    pivots = np.empty((batch.batch, batch.n), np.int32)

    def by_lapack(threads: int) -> NDArray[np.int32]:
        return lapack_lu.factor_batch(batch, lu, pivots, threads)

    return LUInfo(lu, pivots, _factor(by_lapack, batch, lu, pivots, wanted))


def _factor(
    by_lapack: Callable[[int], NDArray[np.int32]], a: Batch, lu: Batch, pivots: NDArray[np.int32], wanted: Wanted
) -> NDArray[np.int32]:
    """Factor a batch of the host, by a kernel or else by LAPACK; the info."""
    threads = int(wanted.threads or available_threads(a.nbytes))
    if a.n > MAX_N:
        return by_lapack(threads)
    try:
        device = get_backend("cpu")
        kernel = chosen_kernel("getrf", device, Form.of(a), False, wanted.spec, wanted.math, argument="a")
    except CompilerNotFound as error:
        if wanted.spec is not None:
            raise
        warn(error)
        return by_lapack(threads)
    info: NDArray[np.int32] = np.zeros(a.batch, np.int32)
    if a.batch:
        kernel(a, lu, pivots, info, threads=threads)
    return info


def _there(a: Any, wanted: Wanted, in_place: bool) -> LUInfo:
    """LU factorizations of an array (..., n, n) or a batch of the GPU."""
    from batchchol.backends.cuda import memory

    matrices = located(a, wanted)
    form, outer = matrices.form, matrices.outer
    pivots, info = (memory.empty(shape, _INT32, "pivots and info") for shape in ((*outer, form.n), outer))
    if isinstance(a, Batch):
        lu = a if in_place and a.writeable else a.like()
        address, kept = lu.address, lu.data
    else:
        usable = in_place and memory.is_writeable(a)
        shape = (*outer, form.n, form.n)
        lu = memory.as_gpuarray(a) if usable else memory.empty(shape, np.dtype(form.dtype), f"an array of {shape}")
        address, kept = int(lu.gpudata or 0), lu
    if form.batch and form.n:
        choice = "getrf", get_backend("cuda"), form, False, wanted.spec, wanted.math
        kernel: Any = _larger(form) if form.n > MAX_N else chosen_kernel(*choice, argument="a")
        if wanted.stream is not None:
            memory.share(wanted.stream, a.data if isinstance(a, Batch) else a, kept, pivots, info)
        places = (matrices.address, address, int(pivots.gpudata), int(info.gpudata))
        kernel.launch(places, 0, form.batch, form.layout, wanted.stream)
    elif wanted.spec is not None and form.n:
        kernel_choice("getrf", get_backend("cuda"), form, False, wanted.spec, wanted.math, argument="a")
    return LUInfo(lu, pivots, info)


def _larger(form: Form) -> Any:
    """What factors matrices of an order that no kernel has."""
    from batchchol.algorithms.general import LuFactorization

    return LuFactorization(form.n, form.dtype)


def _copied_there(
    a: NDArray[Any], lu: NDArray[Any], pivots: NDArray[np.int32], info: NDArray[np.int32], wanted: Wanted
) -> None:
    """Factor arrays of the host on a GPU, copied there and back, in slices if they do not fit."""
    from batchchol.backends.cuda import memory
    from batchchol.backends.cuda.arrays import dense

    per_matrix = 2 * a.nbytes // max(len(a), 1) + (a.shape[-1] + 1) * _INT32.itemsize
    for first, last in dense.slices(len(a), per_matrix):
        there = _there(memory.to_device(a[first:last], f"{last - first:,} matrices"), wanted, True)
        for found, place in zip(there, (lu, pivots, info), strict=True):
            memory.to_host(found, out=place[first:last])
