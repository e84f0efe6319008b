"""The public functions: cholesky, cholesky_ex and factor."""

from __future__ import annotations

from math import prod
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api.arguments import check_on_gpu, check_threads, square_matrices
from batchchol.api.arrays.foreign_arrays import takes_foreign
from batchchol.api.factors.device_factorizations import factor_there
from batchchol.api.factors.factor_determinants import determined_by_factors, factor_and_determine
from batchchol.api.factors.host_factorizations import checked_out, factor_host, room_for
from batchchol.api.factors.plain_calls import factor_plain
from batchchol.api.factors.without_kernels import factor_by_lapack, factor_larger
from batchchol.api.failures import raise_failures
from batchchol.api.repairs import Members, check_jitter, repair
from batchchol.api.results import AnyCholesky, Cholesky, Factor, FactorLogDeterminant, cholesky_of
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import DEFAULT_BACKEND, chosen_backend
from batchchol.backends.cuda import gpus
from batchchol.backends.recorder import current_recorder
from batchchol.batches.batch import Batch, dtype_name
from batchchol.batches.checks import flag
from batchchol.errors import CompilerNotFound
from batchchol.plan import check_array_spec, prepare
from kernelgen import MAX_N, KernelSpec

Real = TypeVar("Real", np.float32, np.float64)


@overload
def cholesky(
    a: NDArray[Real],
    *,
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    out: Any = None,
    jitter: float | str | None = None,
) -> NDArray[Real]: ...
@overload
def cholesky(
    a: ArrayLike,
    *,
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    out: Any = None,
    jitter: float | str | None = None,
) -> Any: ...
def cholesky(
    a: ArrayLike,
    *,
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    out: Any = None,
    jitter: float | str | None = None,
) -> Any:
    """Cholesky factors of symmetric positive definite matrices.

    Parameters
    ----------
    a : array_like, shape (..., n, n), float32 or float64
        The matrices. Only the lower triangle is used, or the upper one if `upper` is set. Not changed. Orders above
        128 are LAPACK's on the CPU and factored by blocks on a GPU, which takes CuPy, and 32 MiB for cuBLAS, for
        float64 matrices from n = 3,584 on and for several of n = 513 to 1,024. Empty arrays, n = 0 included, give
        empty factors, as in NumPy.
        An array on a GPU (torch's, CuPy's, Numba's or PyCUDA's) is factored there, on its library's current stream;
        one that is not C-contiguous is copied first.
    upper : bool
        Return U with A = U^T U in place of L with A = L L^T.
    backend : str, optional
        "cpu" or "cuda"; by default BATCHCHOL_BACKEND, else "cpu". An array of the host that "cuda" is to factor is
        copied to the GPU and back, in slices if it does not fit there.
    spec : KernelSpec, optional
        The kernel to use, for orders up to 128; by default the one measured to be fastest.
    math : str, optional
        "ieee", the default, for correctly rounded square roots and divisions; or "fast", for approximate ones,
        denormals as zeros and, on GPUs, tensor cores, to a residual ratio of at most 4 in place of 1.5, for
        float32 pivots from 1e-30 to 1e30. A spec has its own.
    out : array, optional
        Where the factors go, of the shape and dtype of `a`: on a GPU C-contiguous, of the host of any strides. It may
        be `a` itself, for one matrix less in memory (on a GPU not with a spec or jitter). Writing to memory that is
        in use already saves the time in which the system clears new pages, which decides from n = 24 on.
    jitter : float or "auto", optional
        Try matrices that are not positive definite again, as for `solve`.

    Returns
    -------
    ndarray, shape (..., n, n)
        The factors, or `out`; the other triangle is zero. On a GPU the same library's, still being written.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix is not positive definite; names the first such matrix, the order k of its first leading minor
        that is not, and how many such matrices there are. A NaN counts as not positive, where
        numpy.linalg.cholesky returns NaN.
    TypeError, ValueError
        If the dtype or the shape of `a` or `out` is not as above, elements are masked, the spec is of another
        problem, there is no such math, or `upper` is no bool.
    UnknownBackend, BackendUnavailable
        If there is no such backend, or it cannot be used here; says what is missing and how to get it.
    CompilerNotFound, CompileError, CacheError
        If the kernel is not in the cache, and cannot be built or kept. Where there is no C compiler only a given
        spec raises CompilerNotFound.
    OutOfMemory
        If the factors, or copies that the work takes, would not fit.
    SettingError
        If an environment variable has a value that means nothing.
    DeviceError
        If the GPU or its driver refuses a call.

    Warns
    -----
    NoCompilerWarning
        Once per process, if LAPACK stands in for a CPU's kernels because there is no C compiler.

    Examples
    --------
    >>> print(batchchol.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])))
    [[2. 0.]
     [1. 2.]]
    """
    found: Any = factor_plain(a, upper, backend, math, out) if spec is None and jitter is None else None
    if found is None:
        found = cholesky_ex(a, upper=upper, backend=backend, spec=spec, math=math, out=out, jitter=jitter)
    factors, info, *_ = found
    raise_failures(info, a if out is None else None, upper, "cholesky_ex")
    return factors


@overload
def cholesky_ex(
    a: ArrayLike,
    *,
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    out: Any = None,
    jitter: None = None,
    logdet: Literal[False] = False,
) -> Cholesky: ...
@overload
def cholesky_ex(
    a: ArrayLike,
    *,
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    out: Any = None,
    jitter: float | str | None = None,
    logdet: bool = False,
) -> AnyCholesky: ...
@takes_foreign(Cholesky)
def cholesky_ex(
    a: ArrayLike,
    *,
    upper: bool = False,
    backend: str | None = None,
    spec: KernelSpec | None = None,
    math: str | None = None,
    out: Any = None,
    jitter: float | str | None = None,
    logdet: bool = False,
) -> AnyCholesky:
    """Cholesky factors and LAPACK's info of each matrix; never raises because of the matrices' values.

    As `cholesky`, with its other errors, but info[m] is 0, or k where the leading minor of order k of matrix m is not
    positive definite: then columns (rows if `upper`) before k of its factor are valid and the rest is unspecified. A
    NaN counts as not positive.

    Parameters
    ----------
    logdet : bool
        Return the logarithms of the determinants as well, as `slogdet_ex` does, of what was factored: with what
        `jitter` added. Kernels of CPUs, and those of GPUs that have a thread to a matrix of an array, find them on
        the way; of others the factors' diagonals are read.

    Returns
    -------
    Cholesky
        L : ndarray, shape (..., n, n); info : ndarray of int32, shape (...). On a GPU arrays of the same library.
    RepairedCholesky
        With `jitter`: what was added to the diagonal of each matrix besides, shape (...), as `solve_ex` says.
    CholeskyLogDeterminant, RepairedCholeskyLogDeterminant
        With `logdet`: logabsdet, of the shape of info and the matrices' dtype, NaN where an info is not 0.
    """
    if spec is None and jitter is None and logdet is False:
        found = factor_plain(a, upper, backend, math, out)
        if found is not None:
            return Cholesky(*found)
    upper, determined = flag("upper", upper), flag("logdet", logdet)
    check_jitter(jitter)
    if hasattr(a, "__cuda_array_interface__"):
        check_on_gpu(backend)
        return cholesky_of(*factor_there(a, upper, spec, math, jitter, out, logdet=determined))
    matrices = square_matrices("a", a)
    # What is wrong with a call does not depend on how many matrices there are.
    name = chosen_backend(backend) or DEFAULT_BACKEND
    check_array_spec(matrices.shape[-1], dtype_name(matrices.dtype), upper, spec, math)
    given = checked_out(out, matrices)
    if matrices.size == 0:
        l, info = np.empty_like(matrices) if given is None else given, np.zeros(matrices.shape[:-2], dtype=np.int32)
        added, logs = (info.astype(l.dtype) if wanted else None for wanted in (jitter is not None, determined))
        return cholesky_of(l, info, added, logs)
    return _factor_here(matrices, upper, name, spec, math, given, jitter, determined)


def _factor_here(
    matrices: NDArray[Any],
    upper: bool,
    name: str,
    spec: KernelSpec | None,
    math: str | None,
    given: NDArray[Any] | None,
    jitter: float | str | None,
    logdet: bool,
) -> AnyCholesky:
    """Factors of an array of the host, in `given` if that is an array; those that fail are repaired if asked for."""
    *outer, n, _ = matrices.shape
    dense = matrices.reshape(prod(outer), n, n)
    # What fails is factored again.
    room = room_for(given, dense, kept=jitter is not None)
    l, info, logs = factor_host(name, dense, upper, spec, math, room, logdet=logdet)
    added = None

    def again(members: Members, repaired: NDArray[Any]) -> NDArray[np.int32]:
        l[members], status, determinants = factor_host(name, repaired, upper, spec, math, logdet=logdet)
        if logs is not None:
            logs[members] = determinants
        return status

    if jitter is not None:
        added = repair(jitter, matrices.dtype, info, dense.__getitem__, again)
    l = l.reshape(matrices.shape)
    if given is not None and l.ctypes.data != given.ctypes.data:
        np.copyto(given, l)
    beside = (None if each is None else each.reshape(tuple(outer)) for each in (added, logs))
    return cholesky_of(l if given is None else given, info.reshape(tuple(outer)), *beside)


@overload
def factor(
    batch: Batch,
    spec: KernelSpec | None = None,
    *,
    out: Batch | None = None,
    backend: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    math: str | None = None,
    logdet: Literal[False] = False,
) -> Factor: ...
@overload
def factor(
    batch: Batch,
    spec: KernelSpec | None = None,
    *,
    out: Batch | None = None,
    backend: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    math: str | None = None,
    logdet: bool,
) -> Factor | FactorLogDeterminant: ...
def factor(
    batch: Batch,
    spec: KernelSpec | None = None,
    *,
    out: Batch | None = None,
    backend: str | None = None,
    threads: int | None = None,
    stream: Any = None,
    math: str | None = None,
    logdet: bool = False,
) -> Factor | FactorLogDeterminant:
    """Factor a batch in its own layout, without packing, where it lives; any order, above 128 canonical in rows.

    While a graph is recorded (`batchchol.backends.cuda.graphs.record`), the result is written when that is launched.

    Parameters
    ----------
    batch : Batch
        The matrices.
    spec : KernelSpec, optional
        The kernel to use; by default the one measured to be fastest, for the lower triangle. One with
        `in_place=True` needs `out=batch`.
    out : Batch, optional
        Where the factors go: a batch of the same shape and layout, or `batch` itself to factor in place. By
        default a new one. In packed layouts the other triangle of `out` has no meaning after that: a kernel may
        have written zeros to it, though not in place. It reads as zero through the returned batch's `to_dense`.
    backend : str, optional
        The batch's own.
    threads : int, optional
        How many cores to use at most, for a batch of the host; by default BATCHCHOL_THREADS, else all of them.
    stream : optional
        A stream of PyCUDA, torch or CuPy, or the address of one, for a batch on a GPU, where the call returns before
        the work is done; by default the default stream. Work on another stream begins when what the default stream
        has been given by then is done; wait for that stream before the result is used on any other, as by `to_dense`.
    math : str, optional
        "ieee", the default, or "fast", as for `cholesky`. The backend's `default_layout` says in which layout a batch
        is factored fastest in it.
    logdet : bool
        Return the logarithms of the determinants as well, as `cholesky_ex` does, but not while a graph is recorded.

    Returns
    -------
    Factor
        L : Batch, the factors; info : ndarray (on a GPU: GPUArray) of int32, shape (batch,), as for `cholesky_ex`.
    FactorLogDeterminant
        With `logdet`: logabsdet, of shape (batch,) and the batch's dtype, NaN where an info is not 0.

    Raises
    ------
    TypeError, ValueError
        If `spec`, `math` or `out` does not belong to `batch` or to each other, the spec reads a triangle of it that
        has no meaning, or the backend cannot run the spec on its layout; if `threads` or another argument is not as
        above.
    OutOfMemory
        If the factors would not fit.
    CompilerNotFound, CompileError, CacheError
        If the kernel is not in the cache, and cannot be built or kept. Where there is no C compiler only a given
        spec raises CompilerNotFound.
    SettingError
        If an environment variable has a value that means nothing.
    DeviceError
        If the GPU or its driver refuses a call.

    Warns
    -----
    NoCompilerWarning
        As `cholesky` does.

    Examples
    --------
    >>> packed = batchchol.Batch.from_dense(np.array([[[4.0, 2.0], [2.0, 5.0]]] * 100))
    >>> factors, info = batchchol.factor(packed)
    >>> print(factors.to_dense()[99], info.any())
    [[2. 0.]
     [1. 2.]] False
    """
    # Making the union of `Batch | None` would cost each call as much as all of its other checks.
    if not isinstance(batch, Batch) or not (out is None or isinstance(out, Batch)):
        argument, got = ("out", out) if isinstance(batch, Batch) else ("batch", batch)
        raise TypeError(
            f"{argument}: got {type(got).__name__}, expected a Batch: make one with Batch.from_dense, or use "
            "cholesky for arrays"
        )
    if backend is not None and chosen_backend(backend) != batch.backend:
        raise ValueError(f"backend: got {backend!r}, expected {batch.backend!r}, where the batch lives")
    if batch.gpu not in (None, gpus.first()):
        with gpus.gpus(batch.gpu):
            return factor(batch, spec, out=out, threads=threads, stream=stream, math=math, logdet=logdet)
    check_threads(threads)
    if batch.n > MAX_N:
        larger = factor_larger(batch, spec, out, math, threads, stream)
        return determined_by_factors(larger) if flag("logdet", logdet) else larger
    try:
        prepared = prepare(batch, spec, out, math)
    except CompilerNotFound as error:
        if spec is not None or batch.backend != "cpu":
            raise
        warn(error)
        found = factor_by_lapack(batch, out, threads, stream)
        return determined_by_factors(found) if flag("logdet", logdet) else found
    choice, result = prepared.choice, prepared.result
    device, kernel = choice.device, choice.kernel
    if logdet is not False and flag("logdet", logdet):
        return factor_and_determine(batch, prepared, threads, stream)
    info = device.info(batch, choice.spec, poisoned=False)
    if kernel is not None:
        recorder = current_recorder()
        if recorder is None:
            kernel(batch, result, info, threads=int(threads or device.threads), stream=stream)
        else:
            recorder.add(kernel, batch, result, info, stream)
    return Factor(result, info if len(info) == batch.batch else info[: batch.batch])
