"""Determinants of symmetric positive definite matrices, as logarithms: by kernels or by factors, where they are."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchchol.api.arguments import Wanted, check_on_gpu, square_matrices
from batchchol.api.factors.host_factorizations import diagonal, logarithms
from batchchol.api.solves import device_solves
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import DEFAULT_BACKEND, chosen_backend, get_backend, lapack
from batchchol.backends.base import Form
from batchchol.batches.batch import Batch
from batchchol.batches.checks import check_math
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import chosen_kernel
from kernelgen import MAX_N, Layout, SpecError


class LogDeterminantInfo(NamedTuple):
    """`LogDeterminant` and the info of each matrix, (...), int32: where the matrices were."""

    sign: Any
    logabsdet: Any
    info: Any


def log_determinants(a: Any, backend: str | None, wanted: Wanted) -> LogDeterminantInfo:
    """Signs, logarithms and info of a batch, of an array of the host or of one of a GPU.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as `slogdet` says.
    """
    if isinstance(a, Batch):
        wanted = wanted.of_batch(a, backend)
        return _on_gpu(a, wanted) if a.backend != "cpu" else _signed(*_of_batch(a, wanted))
    if hasattr(a, "__cuda_array_interface__"):
        check_on_gpu(backend)
        return _on_gpu(a, wanted)
    given = square_matrices("a", a)
    logs, info = _of_array(given, chosen_backend(backend) or DEFAULT_BACKEND, wanted)
    return _signed(logs.reshape(given.shape[:-2]), info.reshape(given.shape[:-2]))


def _signed(logs: NDArray[Any], info: NDArray[np.int32]) -> LogDeterminantInfo:
    return LogDeterminantInfo(np.where(info != 0, np.nan, 1).astype(logs.dtype), logs, info)


def _of_array(a: NDArray[Any], backend: str, wanted: Wanted) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The logarithms and the info, (batch,) each, of an array of the host."""
    n = a.shape[-1]
    wanted.check_array(n, a.dtype)
    wanted.check_no_stream("determinants of arrays of the host are there when the call returns")
    dense = a.reshape(prod(a.shape[:-2]), n, n)
    if not dense.size:
        return np.zeros(len(dense), dense.dtype), np.zeros(len(dense), np.int32)
    if backend == "cuda":
        return _copied_to_gpu(dense, wanted)
    if n > MAX_N:
        return _by_lapack(dense, wanted)
    return _of_batch(Batch.over_checked(dense, n, len(dense), Layout.canonical()), wanted)


def _of_batch(batch: Batch, wanted: Wanted) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The same of a batch of the host."""
    wanted.check_no_stream("backend 'cpu' has none")
    if batch.n > MAX_N:
        return _by_lapack(batch.to_dense(), wanted)
    logs, info = np.empty(batch.batch, batch.dtype), np.zeros(batch.batch, np.int32)
    try:
        choice = wanted.op, get_backend("cpu"), Form.of(batch), wanted.upper, None, wanted.math
        kernel = chosen_kernel(*choice, argument=wanted.argument)
    except CompilerNotFound as error:
        warn(error)
        return _by_lapack(batch.to_dense(), wanted)
    kernel(batch, logs, info, threads=int(wanted.threads or available_threads(batch.nbytes)))
    return logs, info


def _by_lapack(dense: NDArray[Any], wanted: Wanted) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The same of an array (batch, n, n), by its factors: where there is no kernel."""
    l, info = lapack.potrf(dense, wanted.upper, int(wanted.threads or available_threads(dense.nbytes)))
    return logarithms(np.diagonal(l, axis1=-2, axis2=-1), info), info


def _copied_to_gpu(dense: NDArray[Any], wanted: Wanted) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The same by a GPU, which matrices are copied to in slices if they do not fit."""
    from batchchol.backends.cuda import memory
    from batchchol.backends.cuda.arrays.dense import slices

    logs, info = np.empty(len(dense), dense.dtype), np.empty(len(dense), np.int32)
    for first, last in slices(len(dense), 2 * dense[0].nbytes + info.itemsize):
        there = memory.to_device(dense[first:last], f"{last - first:,} matrices")
        _, found, status = _on_gpu(there, wanted)
        memory.to_host(found, out=logs[first:last])
        memory.to_host(status, out=info[first:last])
    return logs, info


def _on_gpu(a: Any, wanted: Wanted) -> LogDeterminantInfo:
    """Logarithms of an array or a batch of a GPU: by one kernel, or by one that reads the factors' diagonals."""
    from batchchol.backends.cuda import memory, support
    from batchchol.backends.cuda.device import device

    matrices = device_solves.located(a, wanted)
    check_math(wanted.math)
    form, dtype = matrices.form, np.dtype(matrices.form.dtype)
    signs, logs = (memory.empty(matrices.outer, dtype, f"the {what}") for what in ("signs", "logarithms"))
    sign, logabsdet = (int(each.gpudata or 0) for each in (signs, logs))
    kernel = _kernel_there(form, wanted)
    if kernel is None:
        l, info, _ = device_solves.factored(matrices, wanted)
        _share(wanted.stream, l.owner.data if isinstance(l.owner, Batch) else l.owner, signs, logs, info)
        what = form.n, form.batch, form.layout, form.dtype
        status = int(info.gpudata or 0)
        support.log_determinants(device(), l.address, status, sign, logabsdet, *what, stream=wanted.stream)
        return LogDeterminantInfo(signs, logs, info)
    info = memory.empty(matrices.outer, np.dtype(np.int32), "the info")
    _share(wanted.stream, a.data if isinstance(a, Batch) else a, signs, logs, info)
    with kernel.gpu.queueing():
        kernel.launch((matrices.address, logabsdet, int(info.gpudata)), 0, form.batch, form.layout, wanted.stream)
        support.signs(kernel.gpu, int(info.gpudata), sign, form.batch, form.dtype, stream=wanted.stream)
    return LogDeterminantInfo(signs, logs, info)


def told_by_factors(l: Any, wanted: Wanted) -> tuple[Any, Any]:
    """The info of factors, LAPACK's of potri, and the logarithms of the determinants of what they are factors of."""
    if isinstance(l, np.ndarray):
        return _told(np.diagonal(l, axis1=-2, axis2=-1))
    if isinstance(l, Batch) and l.backend == "cpu":
        return _told(diagonal(l))
    from batchchol.backends.cuda import memory, support
    from batchchol.backends.cuda.device import device

    factors = device_solves.located(l, wanted)
    form, outer = factors.form, factors.outer
    info, logs = (memory.empty(outer, np.dtype(each), "what factors tell") for each in (np.int32, form.dtype))
    _share(wanted.stream, factors.owner.data if isinstance(l, Batch) else l, info, logs)
    if form.batch:
        places, found = (factors.address, 0, 0, int(logs.gpudata)), int(info.gpudata)
        what = form.n, form.batch, form.layout, form.dtype
        support.log_determinants(device(), *places, *what, found=found, stream=wanted.stream)
    return info, logs


def _told(diagonals: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[Any]]:
    bad = ~(np.abs(diagonals) > 0)
    info = np.where(bad.any(-1), np.argmax(bad, -1) + 1, 0) if bad.shape[-1] else np.zeros(bad.shape[:-1])
    return info.astype(np.int32), logarithms(diagonals, info)


def _share(stream: Any, *arrays: Any) -> None:
    """Make arrays ready for use on a stream, if there is one."""
    if stream is not None:
        from batchchol.backends.cuda import memory

        memory.share(stream, *arrays)


def _kernel_there(form: Form, wanted: Wanted) -> Any:
    """The kernel that needs no factors, or None where there is none."""
    if not form.batch or not form.n:
        return None
    try:
        choice = wanted.op, get_backend("cuda"), form, wanted.upper, None, wanted.math
        return chosen_kernel(*choice, argument=wanted.argument)
    except SpecError:
        return None
