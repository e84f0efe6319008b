"""Solves by given Cholesky factors."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.artifacts.no_compiler import warn
from batchchol.backends import DEFAULT_BACKEND, chosen_backend
from batchchol.batches.batch import Batch, check_dtype
from batchchol.batches.checks import check_order, check_unmasked, flag
from batchchol.batches.host_memory import aligned_empty
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import solver_of
from kernelgen import MAX_N, KernelSpec, Layout
from kernelgen.refusals import whole


def cho_solve(
    L: Batch | ArrayLike,
    b: ArrayLike,
    *,
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """The solutions x of A x = b, given the Cholesky factors L of the matrices A = L L^T.

    Parameters
    ----------
    L : Batch, or array_like of shape (..., n, n), float32 or float64
        The factors, such as `factor(batch).L` or `cholesky(a)`. Only the lower triangle is used, or the upper one.
    b : array_like, shape (..., n) or (..., n, nrhs)
        One right-hand side for each matrix, or nrhs of them, of the factors' dtype; of a batch (batch, n) or
        (batch, n, nrhs). Where the factors are on a GPU, an array of the same GPU (torch's, CuPy's or PyCUDA's). Not
        changed.
    upper : bool
        The factors are U with A = U^T U. A batch whose triangle is known needs no word.
    backend : str, optional
        For arrays of the host, "cpu" or "cuda"; by default BATCHCHOL_BACKEND, else "cpu". What "cuda" is to solve is
        copied to the GPU and back.
    spec : KernelSpec, optional
        The kernel to use, of the operation "potrs".
    math : str, optional
        "ieee", the default, or "fast", which may take denormals for zeros. A spec has its own.
    threads : int, optional
        How many cores to use at most; by default BATCHCHOL_THREADS, else all of them.
    stream : optional
        As for `factor`, for factors on a GPU.

    Returns
    -------
    ndarray, of the shape of b
        The solutions; of factors on a GPU a pycuda.gpuarray.GPUArray, which is still being written on the stream.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or does not belong to the others.
    UnknownBackend, BackendUnavailable, CompilerNotFound, CompileError, CacheError, OutOfMemory, SettingError,
    DeviceError
        As `cholesky` does.

    Notes
    -----
    The componentwise backward error is at most (3 n + 1) u |L| |L^T| |x|, with u the unit roundoff (Higham, "Accuracy
    and Stability of Numerical Algorithms", theorem 10.4). Factors are not checked: of one whose diagonal has a zero,
    such as that of a matrix with an info other than 0, the solution is infinite, NaN or meaningless; its neighbours
    are as they would be without it.
    """
    if threads is not None and (whole(threads) or 0) < 1:
        raise ValueError(f"threads: got {threads!r}, expected a positive integer")
    upper = flag("upper", upper)
    if isinstance(L, Batch):
        if backend is not None and chosen_backend(backend) != L.backend:
            raise ValueError(f"backend: got {backend!r}, expected {L.backend!r}, where the factors live")
        if L.triangle is not None:
            if upper and L.triangle == "lower":
                raise ValueError("upper: got True, expected False for factors whose lower triangle has a meaning")
            upper = L.triangle == "upper"
        return _by_batch(L, b, (L.batch,), upper, spec, math, threads, stream)
    if hasattr(L, "__cuda_array_interface__"):
        if backend is not None and chosen_backend(backend) != "cuda":
            raise ValueError(f"backend: got {backend!r}, expected 'cuda' for an array on a GPU")
        return _by_device_array(L, b, upper, spec, math, stream)
    return _by_host_array(L, b, upper, chosen_backend(backend) or DEFAULT_BACKEND, spec, math, threads, stream)


def _by_host_array(
    l: ArrayLike,
    b: ArrayLike,
    upper: bool,
    backend: str,
    spec: KernelSpec | None,
    math: str | None,
    threads: int | None,
    stream: Any,
) -> NDArray[Any]:
    check_unmasked("L", l)
    given = np.asarray(l)
    dtype = check_dtype("L", given.dtype)
    *outer, n, _ = _check_square(given.shape)
    factors = np.ascontiguousarray(given, dtype).reshape(prod(outer), n, n)
    columns = _columns(b, tuple(outer), n, dtype)
    if not columns.size:
        return np.empty_like(columns).reshape(np.shape(b))
    if n > MAX_N:
        _check_without_kernel(spec, backend, n)
        x = _room(columns)
        _lapack().potrs(factors, columns, x, upper, threads or available_threads())
        return x.reshape(np.shape(b))
    if backend == "cuda":
        return _on_gpu(factors, columns, upper, spec, math).reshape(np.shape(b))
    batch = Batch(factors, n, len(factors), Layout.canonical(), "upper" if upper else "lower")
    return _on_host(batch, columns, upper, spec, math, threads, stream).reshape(np.shape(b))


def _by_batch(
    l: Batch,
    b: Any,
    outer: tuple[int, ...],
    upper: bool,
    spec: KernelSpec | None,
    math: str | None,
    threads: int | None,
    stream: Any,
) -> Any:
    if l.backend == "cpu":
        columns = _columns(b, outer, l.n, l.dtype)
        return _on_host(l, columns, upper, spec, math, threads, stream).reshape(np.shape(b))
    given = _device_columns(b, outer, l.n, l.dtype)
    _, solver = solver_of(l, upper, spec, math)
    x = _device_memory().empty(tuple(given.shape), l.dtype, "room for the solutions")
    if x.size:
        solver(l, given.reshape(l.batch, l.n, -1), x.reshape(l.batch, l.n, -1), 1, stream)
    return x


def _by_device_array(l: Any, b: Any, upper: bool, spec: KernelSpec | None, math: str | None, stream: Any) -> Any:
    from batchchol.backends.cuda.batch import DeviceBatch

    factors = _device_memory().as_gpuarray(l, "L")
    check_dtype("L", factors.dtype)
    *outer, n, _ = _check_square(tuple(factors.shape))
    check_order("L", n, "the factors of larger ones are solved by on the host")
    if not factors.size:
        given = _device_columns(b, tuple(outer), n, factors.dtype)
        return _device_memory().empty(tuple(given.shape), factors.dtype, "no solutions")
    batch = prod(outer)
    lying = DeviceBatch.over(factors.reshape(batch, n, n), n, batch, Layout.canonical())
    return _by_batch(lying, b, tuple(outer), upper, spec, math, None, stream)


def _on_host(
    l: Batch,
    columns: NDArray[np.floating],
    upper: bool,
    spec: KernelSpec | None,
    math: str | None,
    threads: int | None,
    stream: Any,
) -> NDArray[np.floating]:
    """Solutions (batch, n, nrhs) by factors of the host: by a kernel, or by LAPACK where there is no compiler."""
    x, count = _room(columns), int(threads or available_threads())
    if stream is not None:
        raise ValueError(f"stream: got {stream!r}, expected None: backend 'cpu' has none")
    if not columns.size:
        return x
    try:
        _, solver = solver_of(l, upper, spec, math)
    except CompilerNotFound as error:
        if spec is not None:
            raise
        warn(error)
        _lapack().solve_batch(l, columns, x, upper, count)
    else:
        solver(l, columns, x, count)
    return x


def _on_gpu(
    factors: NDArray[np.floating],
    columns: NDArray[np.floating],
    upper: bool,
    spec: KernelSpec | None,
    math: str | None,
) -> NDArray[Any]:
    """Solutions of arrays of the host, copied to the GPU and back."""
    memory = _device_memory()
    there = memory.to_device(factors, f"{len(factors):,} factors")
    x = _by_device_array(there, memory.to_device(columns, "right-hand sides"), upper, spec, math, None)
    solution: NDArray[Any] = memory.to_host(x, out=_room(columns))
    return solution


def _columns(b: ArrayLike, outer: tuple[int, ...], n: int, dtype: np.dtype[Any]) -> NDArray[np.floating]:
    """The right-hand sides as a C-contiguous array (batch, n, nrhs)."""
    if hasattr(b, "__cuda_array_interface__"):
        raise TypeError("b: got an array on a GPU, expected one of the host, where the factors are: copy one of them")
    check_unmasked("b", b)
    given = np.asarray(b)
    _check_columns(given.shape, given.dtype, outer, n, dtype)
    return np.ascontiguousarray(given, dtype).reshape(prod(outer), n, prod(given.shape[len(outer) + 1 :]))


def _device_columns(b: Any, outer: tuple[int, ...], n: int, dtype: np.dtype[Any]) -> Any:
    """The right-hand sides as a GPUArray."""
    if not hasattr(b, "__cuda_array_interface__"):
        raise TypeError(
            f"b: got {type(b).__name__}, expected an array on the GPU, where the factors are: copy one of them"
        )
    given = _device_memory().as_gpuarray(b, "b")
    _check_columns(tuple(given.shape), given.dtype, outer, n, dtype)
    return given


def _check_columns(
    shape: tuple[int, ...], dtype: np.dtype[Any], outer: tuple[int, ...], n: int, wanted: np.dtype[Any]
) -> None:
    """Refuse right-hand sides that are not those of these factors."""
    if shape[: len(outer) + 1] != (*outer, n) or len(shape) > len(outer) + 2:
        several = ", ".join(map(str, (*outer, n, "nrhs")))
        raise ValueError(f"b: got shape {shape}, expected {(*outer, n)} or ({several}), as the factors are")
    if dtype.newbyteorder("=") != wanted:
        raise TypeError(f"b: got dtype {dtype}, expected {wanted}, as the factors are: convert with .astype first")


def _check_square(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"L: got shape {shape}, expected square matrices (..., n, n)")
    return shape


def _check_without_kernel(spec: KernelSpec | None, backend: str, n: int) -> None:
    """Refuse what only kernels can do of orders that they are not for."""
    if backend == "cuda":
        check_order("L", n, "backend='cpu' has LAPACK solve by larger ones")
    if spec is not None:
        raise ValueError(
            f"spec: got a kernel for factors of order {spec.problem.n}, expected None for those of order {n}: "
            f"kernels are for orders up to {MAX_N}, and LAPACK solves by larger ones"
        )


def _room(columns: NDArray[np.floating]) -> NDArray[np.floating]:
    return aligned_empty(columns.shape, columns.dtype, f"an array of shape {columns.shape}")


def _lapack() -> Any:
    """Imported late, since SciPy takes long to import."""
    from batchchol.backends import lapack

    return lapack


def _device_memory() -> Any:
    from batchchol.backends.cuda import memory

    return memory
