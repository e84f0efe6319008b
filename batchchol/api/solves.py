"""Solves by given Cholesky factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api.arguments import check_square, check_threads, contiguous, square_matrices
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import DEFAULT_BACKEND, Backend, chosen_backend, lapack
from batchchol.backends.recorder import current_recorder
from batchchol.batches.batch import Batch, check_dtype, dtype_name
from batchchol.batches.checks import check_order, check_unmasked, flag
from batchchol.batches.host_memory import aligned_empty
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import check_array_spec, kernel_choice
from kernelgen import MAX_N, KernelSpec, Layout


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
    RuntimeError
        If a graph is being recorded in this thread, for a batch on a GPU, which may not be there yet.

    Warns
    -----
    NoCompilerWarning
        As `cholesky` does.

    Notes
    -----
    The componentwise backward error is at most (3 n + 1) u |L| |L^T| |x|, with u the unit roundoff (Higham, "Accuracy
    and Stability of Numerical Algorithms", theorem 10.4), where all numbers on the way are normal ones. Kernels
    multiply by the reciprocals of diagonal elements, which are normal for factors of matrices. Factors are not
    checked: of one whose diagonal has a zero, such as that of a matrix with an info other than 0, the solution is
    infinite, NaN or meaningless; its neighbours are as they would be without it.
    """
    upper = flag("upper", upper)
    check_threads(threads)
    wanted = _Wanted(upper, spec, math, threads, stream)
    if isinstance(L, Batch):
        if backend is not None and chosen_backend(backend) != L.backend:
            raise ValueError(f"backend: got {backend!r}, expected {L.backend!r}, where the factors live")
        if upper and L.triangle == "lower":
            raise ValueError("upper: got True, expected False for factors whose lower triangle alone has a meaning")
        wanted = replace(wanted, upper=upper or L.triangle == "upper")
        if L.backend == "cpu":
            return _by_host_batch(L, b, (L.batch,), wanted)
        if current_recorder() is not None:
            raise RuntimeError(
                "L: a graph is being recorded in this thread, and a batch of factors may not be there before that is "
                "launched: call cho_solve after it"
            )
        return _by_device_batch(L, b, (L.batch,), wanted)
    if hasattr(L, "__cuda_array_interface__"):
        if backend is not None and chosen_backend(backend) != "cuda":
            raise ValueError(f"backend: got {backend!r}, expected 'cuda' for an array on a GPU")
        return _by_device_array(L, b, wanted)
    return _by_host_array(L, b, chosen_backend(backend) or DEFAULT_BACKEND, wanted)


@dataclass(frozen=True)
class _Wanted:
    """How a call is to solve; see `cho_solve`."""

    upper: bool
    spec: KernelSpec | None
    math: str | None
    threads: int | None
    stream: Any

    def check_array(self, n: int, dtype: np.dtype[Any]) -> None:
        """Refuse a spec or a math that is not for factors in an array."""
        check_array_spec(n, dtype_name(dtype), self.upper, self.spec, self.math, "potrs")

    def kernel(self, l: Batch) -> tuple[Backend, KernelSpec]:
        """Where it is solved by a batch of factors, and by which kernel."""
        return kernel_choice("potrs", l, self.upper, self.spec, self.math, argument="L")

    def check_no_stream(self, where: str) -> None:
        """Refuse a stream where there is none."""
        if self.stream is not None:
            raise ValueError(f"stream: got {self.stream!r}, expected None: {where}")


def _by_host_array(l: ArrayLike, b: ArrayLike, backend: str, wanted: _Wanted) -> NDArray[Any]:
    given = square_matrices("L", l)
    *outer, n, _ = given.shape
    # What is wrong with a call does not depend on how many matrices there are.
    if backend == "cuda":
        check_order("L", n, "backend='cpu' has LAPACK solve by larger ones")
    wanted.check_array(n, given.dtype)
    wanted.check_no_stream("arrays of the host have been solved for when the call returns")
    columns = _columns(b, tuple(outer), n, given.dtype)
    if not columns.size:
        return np.empty_like(columns)
    factors, panels = given.reshape(prod(outer), n, n), _panels(columns, tuple(outer), n)
    if backend == "cuda":
        return _on_gpu(factors, panels, wanted).reshape(columns.shape)
    x = _room(panels)
    if n > MAX_N:
        lapack.potrs(factors, panels, x, wanted.upper, int(wanted.threads or available_threads()))
    else:
        _solve(Batch(factors, n, len(factors), Layout.canonical()), panels, x, wanted)
    return x.reshape(columns.shape)


def _by_host_batch(l: Batch, b: ArrayLike, outer: tuple[int, ...], wanted: _Wanted) -> NDArray[Any]:
    wanted.check_no_stream("backend 'cpu' has none")
    columns = _columns(b, outer, l.n, l.dtype)
    panels = _panels(columns, outer, l.n)
    x = _room(panels)
    _solve(l, panels, x, wanted)
    return x.reshape(columns.shape)


def _solve(l: Batch, b: NDArray[np.floating], x: NDArray[np.floating], wanted: _Wanted) -> None:
    """Solve by factors of the host for (batch, n, nrhs): by a kernel, or by LAPACK where there is no compiler."""
    threads = int(wanted.threads or available_threads())
    try:
        device, spec = wanted.kernel(l)
        kernel = device.kernel(spec) if b.size else None
    except CompilerNotFound as error:
        if wanted.spec is not None:
            raise
        warn(error)
        lapack.solve_batch(l, b, x, wanted.upper, threads)
    else:
        if kernel is not None:
            kernel(l, b, x, threads=threads)


def _by_device_array(l: Any, b: Any, wanted: _Wanted) -> Any:
    from batchchol.backends.cuda.batch import DeviceBatch

    factors = _device_memory().as_gpuarray(l, "L")
    check_dtype("L", factors.dtype)
    check_square("L", tuple(factors.shape))
    *outer, n, _ = factors.shape
    check_order("L", n, "cho_solve has LAPACK solve by larger ones, once they are on the host")
    wanted.check_array(n, factors.dtype)
    if not factors.size:
        return _device_room(_device_columns(b, tuple(outer), n, factors.dtype))
    batch = prod(outer)
    lying = DeviceBatch.over(factors.reshape(batch, n, n), n, batch, Layout.canonical())
    return _by_device_batch(lying, b, tuple(outer), wanted)


def _by_device_batch(l: Batch, b: Any, outer: tuple[int, ...], wanted: _Wanted) -> Any:
    columns = _device_columns(b, outer, l.n, l.dtype)
    device, spec = wanted.kernel(l)
    x = _device_room(columns)
    if x.size:
        panels = (_panels(each, outer, l.n) for each in (columns, x))
        device.kernel(spec)(l, *panels, threads=1, stream=wanted.stream)
    return x


def _on_gpu(factors: NDArray[np.floating], panels: NDArray[np.floating], wanted: _Wanted) -> NDArray[Any]:
    """Solutions (batch, n, nrhs) of arrays of the host, copied to the GPU and back."""
    memory = _device_memory()
    there = memory.to_device(factors, f"{len(factors):,} factors")
    x = _by_device_array(there, memory.to_device(panels, "right-hand sides"), wanted)
    solution: NDArray[Any] = memory.to_host(x, out=_room(panels))
    return solution


def _columns(b: ArrayLike, outer: tuple[int, ...], n: int, dtype: np.dtype[Any]) -> NDArray[np.floating]:
    """The right-hand sides as a C-contiguous array of the host."""
    if hasattr(b, "__cuda_array_interface__"):
        raise TypeError("b: got an array on a GPU, expected one of the host, where the factors are: copy one of them")
    check_unmasked("b", b)
    given = np.asarray(b)
    _check_columns(given.shape, given.dtype.newbyteorder("="), outer, n, dtype)
    return contiguous("b", given, dtype)


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
    if dtype != wanted:
        raise TypeError(f"b: got dtype {dtype}, expected {wanted}, as the factors are: convert with .astype first")


def _panels(columns: Any, outer: tuple[int, ...], n: int) -> Any:
    """The right-hand sides, or solutions, as (batch, n, nrhs)."""
    return columns.reshape((prod(outer), n, prod(columns.shape[len(outer) + 1 :])))


def _room(columns: NDArray[np.floating]) -> NDArray[np.floating]:
    return aligned_empty(columns.shape, columns.dtype, f"an array of shape {columns.shape}")


def _device_room(columns: Any) -> Any:
    shape = tuple(columns.shape)
    return _device_memory().empty(shape, columns.dtype, f"an array of shape {shape}")


def _device_memory() -> Any:
    from batchchol.backends.cuda import memory

    return memory
