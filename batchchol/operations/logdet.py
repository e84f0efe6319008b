"""Logarithms of determinants: the oracle, and the error that counts, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.operations.residual import check_info, lower_triangles, spread_members, worst_within

# Roots that are estimates have relative errors of their own, each of which is in the product.
RATIO_BOUND: Mapping[str, float] = MappingProxyType({"ieee": 1.0, "fast": 2.0})


def oracle(a: NDArray[np.floating]) -> NDArray[np.float64]:
    """The logarithms (batch,) of the determinants of matrices (batch, n, n), of which the lower triangle is read."""
    diagonal = np.diagonal(np.linalg.cholesky(_symmetric(a)), axis1=-2, axis2=-1)
    # A float64 sum would lose more than some of the logarithms that are held against it.
    return np.asarray(2 * np.log(diagonal.astype(np.longdouble)).sum(axis=-1), dtype=np.float64)


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def ratios(a: NDArray[np.floating], logdet: NDArray[np.floating]) -> NDArray[np.float64]:
    """The error of each logarithm, in units of what a factorization and the sum may lose, evaluated in float64.

    ratio = |s - log det A| / (u ((n + 1) sum_ij |A^-1|_ij (|L| |L^T|)_ij + 2 n + 3 |s|)), with L the float64 factor
    of A and u the unit roundoff of the logarithms' dtype. A factorization is that of A + E with |E| at most (n + 1)
    u |L| |L^T| (Higham, "Accuracy and Stability of Numerical Algorithms", theorem 10.3), by which the logarithm
    differs by the trace of A^-1 E to first order; the product of the pivots, which is squared, has n roundings, and
    ln 2, its product with the exponent and their sum have one each.

    Parameters
    ----------
    a : ndarray, shape (batch, n, n)
        The matrices, of which the lower triangle is read; positive definite.
    logdet : ndarray, shape (batch,)
        The logarithms.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where a logarithm is not finite.
    """
    n, unit = a.shape[-1], float(np.finfo(logdet.dtype).eps) / 2
    matrices = _symmetric(a)
    magnitude = np.abs(np.linalg.cholesky(matrices))
    moved = (np.abs(np.linalg.inv(matrices)) * (magnitude @ magnitude.swapaxes(-1, -2))).sum(axis=(-1, -2))
    allowed = unit * ((n + 1) * moved + 2 * n + 3 * np.abs(logdet))
    quotient = np.abs(logdet - oracle(a)) / allowed
    return np.where(np.isfinite(quotient), quotient, np.inf)


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def ratios_by_factors(l: NDArray[np.floating], logdet: NDArray[np.floating]) -> NDArray[np.float64]:
    """The error of each logarithm by a factor, in units of u (2 n + 3 |s|): `ratios` has where they come from.

    Parameters
    ----------
    l : ndarray, shape (batch, n, n)
        The factors.
    logdet : ndarray, shape (batch,)
        The logarithms.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where a logarithm is not finite.
    """
    n, unit = l.shape[-1], float(np.finfo(logdet.dtype).eps) / 2
    exact = 2 * np.log(np.abs(np.diagonal(l, axis1=-2, axis2=-1).astype(np.longdouble))).sum(axis=-1)
    quotient = np.abs(logdet - exact.astype(np.float64)) / (unit * (2 * n + 3 * np.abs(logdet)))
    return np.where(np.isfinite(quotient), quotient, np.inf)


def _check(
    ratios_of: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]],
    a: Batch,
    logdet: Any,
    info: Any,
    math: str,
    *,
    upper: bool = False,
    samples: int = 128,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
) -> float:
    """Check logarithms by a batch: every info is 0, and those of evenly spread members are within their bound.

    Parameters
    ----------
    ratios_of : callable
        The error of logarithms by lower triangles.
    a : Batch
        The matrices, positive definite, or the factors, in any layout.
    logdet, info : array, shape (batch,)
        The logarithms, and what the kernel said of each matrix.
    math, upper, samples, host
        As for `posv.check`.

    Returns
    -------
    float
        The largest ratio seen.

    Raises
    ------
    ResidualError
        If the check fails: the numbers measured with this result must not be stored.
    """
    check_info(host(info)[: a.batch])
    members, found = spread_members(a.batch, samples), host(logdet)
    lower = lower_triangles(a, members, upper, host)
    seen = [float(ratios_of(each, found[m : m + 1])[0]) for m, each in zip(members, lower, strict=True)]
    return worst_within(seen, members, RATIO_BOUND[math], math, "logarithms of the error ratio", "they are wrong")


check = partial(_check, ratios)
"""Check logarithms by matrices."""

check_by_factors = partial(_check, ratios_by_factors)
"""Check logarithms by factors."""


def _symmetric(a: NDArray[np.floating]) -> NDArray[np.float64]:
    lower = np.tril(a.astype(np.float64))
    return np.asarray(lower + np.tril(lower, -1).swapaxes(-1, -2))
