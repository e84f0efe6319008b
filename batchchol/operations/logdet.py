"""Logarithms of determinants: the oracle, and the error that counts, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

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


def _symmetric(a: NDArray[np.floating]) -> NDArray[np.float64]:
    lower = np.tril(a.astype(np.float64))
    return np.asarray(lower + np.tril(lower, -1).swapaxes(-1, -2))
