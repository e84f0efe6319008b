"""Determinants of matrices, as logarithms."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from batchchol.api.arguments import Wanted, check_threads, is_general
from batchchol.api.arrays.foreign_arrays import takes_foreign
from batchchol.api.factors.host_factorizations import diagonal as diagonal_of
from batchchol.api.failures import raise_failures
from batchchol.api.lu import lu_factor_ex
from batchchol.api.solves.log_determinants import LogDeterminantInfo, log_determinants
from batchchol.batches.batch import Batch
from batchchol.batches.checks import flag
from kernelgen import Layout


class LogDeterminant(NamedTuple):
    """The sign of each determinant, (...), and the logarithm of its size, as numpy.linalg.slogdet returns them."""

    sign: Any
    logabsdet: Any


def slogdet(
    a: Batch | ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> LogDeterminant:
    """Signs and logarithms of determinants.

    Of symmetric positive definite matrices the logarithm of the product of the pivots of a Cholesky factorization,
    whose exponents are added up apart: it neither overflows nor underflows. One kernel does it all, and the factors
    are not written; a GPU has such ones for orders up to 28 (27 of arrays, in float64 19), and reads the diagonals of
    the factors of larger ones. Of general matrices the sum of the logarithms of the sizes of U's diagonal.

    Parameters
    ----------
    a : Batch, or array_like of shape (..., n, n), float32 or float64
        The matrices. Only the lower triangle is used, or the upper one if `upper` is set.
    assume_a, upper, backend, math, threads, stream
        As for `solve`.

    Returns
    -------
    LogDeterminant
        sign : ndarray, shape (...), which is 1 of positive definite matrices, and 0 of singular ones; logabsdet :
        ndarray, shape (...), minus infinity of singular ones: of the matrices' dtype. On a GPU arrays of the same
        library.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix that is assumed to be positive definite is not, as `cholesky` does, with its other errors.

    Examples
    --------
    >>> sign, logabsdet = batchchol.slogdet(np.array([[4.0, 2.0], [2.0, 5.0]]))
    >>> print(sign, np.exp(logabsdet).round(6))
    1.0 16.0
    """
    sign, logabsdet, info = slogdet_ex(
        a, assume_a=assume_a, upper=upper, backend=backend, math=math, threads=threads, stream=stream
    )
    if assume_a == "pos":
        raise_failures(info, a, upper, "slogdet_ex")
    return LogDeterminant(sign, logabsdet)


@takes_foreign(LogDeterminantInfo)
def slogdet_ex(
    a: Batch | ArrayLike,
    *,
    assume_a: str = "pos",
    upper: bool = False,
    backend: str | None = None,
    math: str | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> LogDeterminantInfo:
    """`slogdet` and LAPACK's info of each matrix; never raises because of the matrices' values.

    Where an info is not 0, sign and logabsdet of matrices that are assumed to be positive definite are NaN.
    """
    check_threads(threads)
    wanted = Wanted("logdet", "a", "matrices", flag("upper", upper), None, math, threads, stream)
    found = _of_general if is_general(assume_a, upper=upper) else log_determinants
    return found(a, backend, wanted)


def _of_general(a: Any, backend: str | None, wanted: Wanted) -> LogDeterminantInfo:
    """Determinants of general matrices, by the diagonals of U and the number of exchanges."""
    if hasattr(a, "__cuda_array_interface__") or (isinstance(a, Batch) and a.backend != "cpu"):
        return _of_general_there(a, backend, wanted)
    lu, pivots, info = lu_factor_ex(
        a, backend=backend, math=wanted.math, threads=wanted.threads, stream=wanted.stream
    )
    diagonal = diagonal_of(lu) if isinstance(lu, Batch) else np.diagonal(lu, axis1=-2, axis2=-1)
    exchanged = (pivots != np.arange(1, pivots.shape[-1] + 1)).sum(-1)
    sign = np.sign(diagonal).prod(-1) * np.where(exchanged % 2, -1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.abs(diagonal)).sum(-1, dtype=np.float64)
    return LogDeterminantInfo(sign.astype(diagonal.dtype), logs.astype(diagonal.dtype), info)


def _of_general_there(a: Any, backend: str | None, wanted: Wanted) -> LogDeterminantInfo:
    """The same of an array or a batch of a GPU."""
    from batchchol.backends.cuda import memory, support
    from batchchol.backends.cuda.device import device

    lu, pivots, info = lu_factor_ex(
        a, backend=backend, math=wanted.math, threads=wanted.threads, stream=wanted.stream
    )
    n, outer = pivots.shape[-1], pivots.shape[:-1]
    dtype = np.dtype(lu.dtype)
    signs, logs = (memory.empty(outer, dtype, f"the {what}") for what in ("signs", "logarithms"))
    if logs.size:
        address, layout = (lu.address, lu.layout) if isinstance(lu, Batch) else (lu.gpudata, Layout.canonical())
        places = int(address or 0), int(pivots.gpudata or 0), int(signs.gpudata), int(logs.gpudata)
        if wanted.stream is not None:
            memory.share(wanted.stream, lu.data if isinstance(lu, Batch) else lu, pivots, signs, logs)
        support.lu_determinants(device(), places, n, prod(outer), layout, dtype.name, stream=wanted.stream)
    return LogDeterminantInfo(signs, logs, info)
