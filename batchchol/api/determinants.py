"""Determinants of matrices, as logarithms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchchol.api import device_solves
from batchchol.api.arguments import Wanted, check_assumed
from batchchol.api.factorizations import cholesky_ex, factor
from batchchol.api.failures import raise_failures
from batchchol.backends import chosen_backend
from batchchol.batches.batch import Batch
from batchchol.batches.checks import check_math, flag
from batchchol.batches.layouts import dense_view


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
    """Signs and logarithms of the determinants of symmetric positive definite matrices.

    Twice the sum of the logarithms of the Cholesky factor's diagonal, which neither overflows nor underflows.

    Parameters
    ----------
    a : Batch, or array_like of shape (..., n, n), float32 or float64
        The matrices. Only the lower triangle is used, or the upper one if `upper` is set.
    assume_a, upper, backend, math
        As for `solve`.

    Returns
    -------
    LogDeterminant
        sign : ndarray, shape (...), which is 1; logabsdet : ndarray, shape (...): of the matrices' dtype. GPUArrays
        of matrices on a GPU.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix is not positive definite, as `cholesky` does, with its other errors.
    """
    sign, logabsdet, info = slogdet_ex(a, assume_a=assume_a, upper=upper, backend=backend, math=math)
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

    Where an info is not 0, sign and logabsdet are NaN.
    """
    check_assumed(assume_a)
    wanted = Wanted("potrf", "a", "matrices", flag("upper", upper), math=math)
    if isinstance(a, Batch):
        wanted = wanted.of_batch(a, backend)
        if a.backend != "cpu":
            return _on_gpu(a, wanted)
        diagonal, info = _of_batch(a, wanted.upper, math)
    elif hasattr(a, "__cuda_array_interface__"):
        if backend is not None and chosen_backend(backend) != "cuda":
            raise ValueError(f"backend: got {backend!r}, expected 'cuda' for an array on a GPU")
        return _on_gpu(a, wanted)
    else:
        l, info = cholesky_ex(a, upper=wanted.upper, backend=backend, math=math)
        diagonal = np.diagonal(l, axis1=-2, axis2=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = 2 * np.log(diagonal).sum(-1, dtype=np.float64)
    failed = info != 0
    logabsdet = np.where(failed, np.nan, logs).astype(diagonal.dtype)
    return LogDeterminantInfo(np.where(failed, np.nan, 1).astype(diagonal.dtype), logabsdet, info)


def _of_batch(batch: Batch, upper: bool, math: str | None) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The diagonals of the factors of a batch of the host, (batch, n), and the info."""
    if upper:
        # Batches are factored by their lower triangles, where none is named.
        factors, info = cholesky_ex(batch.to_dense(), upper=True, backend="cpu", math=math)
        return np.diagonal(factors, axis1=-2, axis2=-1), info
    l, info = factor(batch, math=math)
    diagonal = np.diagonal(dense_view(l.data, l.layout), axis1=-2, axis2=-1)
    return diagonal.reshape(-1, batch.n)[: batch.batch], info


def _on_gpu(a: Any, wanted: Wanted) -> LogDeterminantInfo:
    """Of an array or a batch of a GPU, by a kernel that reads the diagonals of the factors."""
    from batchchol.backends.cuda import memory, support
    from batchchol.backends.cuda.device import device

    matrices = device_solves.located(a, wanted)
    check_math(wanted.math)
    l, info = device_solves.factored(matrices, wanted)
    form, dtype = l.form, np.dtype(l.form.dtype)
    signs, logs = (memory.empty(matrices.outer, dtype, f"the {what}") for what in ("signs", "logarithms"))
    status, sign, logabsdet = (int(each.gpudata or 0) for each in (info, signs, logs))
    what = form.n, form.batch, form.layout, form.dtype
    support.log_determinants(device(), l.address, status, sign, logabsdet, *what)
    return LogDeterminantInfo(signs, logs, info)
