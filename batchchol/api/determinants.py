"""Determinants of matrices, as logarithms."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api import device_solves
from batchchol.api.arguments import Wanted, check_on_gpu, is_general, square_matrices
from batchchol.api.failures import raise_failures
from batchchol.api.lu import lu_factor_ex
from batchchol.artifacts.no_compiler import warn
from batchchol.backends import DEFAULT_BACKEND, chosen_backend, get_backend, lapack
from batchchol.backends.base import Form
from batchchol.batches.batch import Batch
from batchchol.batches.checks import check_math, flag
from batchchol.batches.layouts import dense_view
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads
from batchchol.plan import chosen_kernel
from kernelgen import MAX_N, Layout, SpecError


class LogDeterminant(NamedTuple):
    """The sign of each determinant, (...), and the logarithm of its size, as numpy.linalg.slogdet returns them."""

    sign: Any
    logabsdet: Any


class LogDeterminantInfo(NamedTuple):
    """`LogDeterminant` and the info of each matrix, (...), int32: where the matrices were."""

    sign: Any
    logabsdet: Any
    info: Any


def slogdet(
    a: Batch | ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    math: str | None = None,
) -> LogDeterminant:
    """Signs and logarithms of determinants.

    Of symmetric positive definite matrices the logarithm of the product of the pivots of a Cholesky factorization,
    whose exponents are added up apart: it neither overflows nor underflows. One kernel does it all, and the factors
    are not written; a GPU has such ones for orders up to 27, and for larger ones reads the diagonals of factors. Of
    general matrices the sum of the logarithms of the sizes of U's diagonal.

    Parameters
    ----------
    a : Batch, or array_like of shape (..., n, n), float32 or float64
        The matrices. Only the lower triangle is used, or the upper one if `upper` is set.
    assume_a, upper, backend, math
        As for `solve`.

    Returns
    -------
    LogDeterminant
        sign : ndarray, shape (...), which is 1 of positive definite matrices, and 0 of singular ones; logabsdet :
        ndarray, shape (...), minus infinity of singular ones: of the matrices' dtype. GPUArrays of matrices on a GPU.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix that is assumed to be positive definite is not, as `cholesky` does, with its other errors.
    """
    sign, logabsdet, info = slogdet_ex(a, assume_a=assume_a, upper=upper, backend=backend, math=math)
    if assume_a == "pos":
        raise_failures(info, a, upper, "slogdet_ex")
    return LogDeterminant(sign, logabsdet)


def slogdet_ex(
    a: Batch | ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    math: str | None = None,
) -> LogDeterminantInfo:
    """`slogdet` and LAPACK's info of each matrix; never raises because of the matrices' values.

    Where an info is not 0, sign and logabsdet of matrices that are assumed to be positive definite are NaN.
    """
    if is_general(assume_a, upper=upper):
        return _of_general(a, backend, math)
    wanted = Wanted("logdet", "a", "matrices", flag("upper", upper), math=math)
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
    logs, info = np.empty(batch.batch, batch.dtype), np.zeros(batch.batch, np.int32)
    try:
        choice = wanted.op, get_backend("cpu"), Form.of(batch), wanted.upper, None, wanted.math
        kernel = chosen_kernel(*choice, argument=wanted.argument)
    except CompilerNotFound as error:
        warn(error)
        return _by_lapack(batch.to_dense(), wanted)
    kernel(batch, logs, info, threads=available_threads(batch.nbytes))
    return logs, info


def _by_lapack(dense: NDArray[Any], wanted: Wanted) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The same of an array (batch, n, n), by its factors: where there is no kernel."""
    l, info = lapack.potrf(dense, wanted.upper, available_threads(dense.nbytes))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = 2 * np.log(np.diagonal(l, axis1=-2, axis2=-1)).sum(-1, dtype=np.float64)
    return np.where(info != 0, np.nan, logs).astype(dense.dtype), info


def _copied_to_gpu(dense: NDArray[Any], wanted: Wanted) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The same by a GPU, which matrices are copied to in slices if they do not fit."""
    from batchchol.backends.cuda import memory
    from batchchol.backends.cuda.dense import slices

    logs, info = np.empty(len(dense), dense.dtype), np.empty(len(dense), np.int32)
    for first, last in slices(len(dense), 2 * dense[0].nbytes + info.itemsize):
        there = memory.to_device(dense[first:last], f"{last - first:,} matrices")
        _, found, status = _on_gpu(there, wanted)
        memory.to_host(found, out=logs[first:last])
        memory.to_host(status, out=info[first:last])
    return logs, info


def _of_general(a: Any, backend: str | None, math: str | None) -> LogDeterminantInfo:
    """Of general matrices, by the diagonals of U and the number of exchanges."""
    if hasattr(a, "__cuda_array_interface__") or (isinstance(a, Batch) and a.backend != "cpu"):
        raise ValueError(
            "assume_a: got 'gen' for matrices on a GPU, expected 'pos': copy them to the host, or call with "
            "backend='cuda' there"
        )
    lu, pivots, info = lu_factor_ex(a, backend=backend, math=math)
    diagonal = _diagonal(lu) if isinstance(lu, Batch) else np.diagonal(lu, axis1=-2, axis2=-1)
    exchanged = (pivots != np.arange(1, pivots.shape[-1] + 1)).sum(-1)
    sign = np.sign(diagonal).prod(-1) * np.where(exchanged % 2, -1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.abs(diagonal)).sum(-1, dtype=np.float64)
    return LogDeterminantInfo(sign.astype(diagonal.dtype), logs.astype(diagonal.dtype), info)


def _diagonal(batch: Batch) -> NDArray[Any]:
    """The diagonals (batch, n) of a batch of the host."""
    diagonal = np.diagonal(dense_view(batch.data, batch.layout), axis1=-2, axis2=-1)
    return diagonal.reshape(-1, batch.n)[: batch.batch]


def _on_gpu(a: Any, wanted: Wanted) -> LogDeterminantInfo:
    """Of an array or a batch of a GPU: by one kernel, or by one that reads the diagonals of the factors."""
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
        what = form.n, form.batch, form.layout, form.dtype
        support.log_determinants(device(), l.address, int(info.gpudata or 0), sign, logabsdet, *what)
        return LogDeterminantInfo(signs, logs, info)
    info = memory.empty(matrices.outer, np.dtype(np.int32), "the info")
    with kernel.gpu.queueing():
        kernel.launch((matrices.address, logabsdet, int(info.gpudata)), 0, form.batch, form.layout)
        support.signs(kernel.gpu, int(info.gpudata), sign, form.batch, form.dtype)
    return LogDeterminantInfo(signs, logs, info)


def _kernel_there(form: Form, wanted: Wanted) -> Any:
    """The kernel that needs no factors, or None where there is none."""
    if not form.batch or not form.n:
        return None
    try:
        choice = wanted.op, get_backend("cuda"), form, wanted.upper, None, wanted.math
        return chosen_kernel(*choice, argument=wanted.argument)
    except SpecError:
        return None
