"""Inverses by given factors: the oracle, and the residual that counts, componentwise, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.operations.residual import check_info, lower_triangles, spread_members, worst_within

# The theorem is one to first order: of 20,000 matrices of order 5 and condition 10^6 the worst had 0.8 in float32.
RATIO_BOUND: Mapping[str, float] = MappingProxyType({"ieee": 1.5, "fast": 2.5})


def oracle(l: NDArray[np.floating], upper: bool = False) -> NDArray[np.float64]:
    """The inverses (batch, n, n), both triangles, by factors (batch, n, n): LAPACK's potri in float64."""
    from scipy.linalg.lapack import dpotri

    found = np.array([dpotri(factor, lower=not upper)[0] for factor in l.astype(np.float64)], np.float64)
    half = np.triu(found.reshape(l.shape)) if upper else np.tril(found.reshape(l.shape))
    return np.asarray(half + half.swapaxes(-1, -2) - half * np.eye(l.shape[-1]))


def ratios(l: NDArray[np.floating], x: NDArray[np.floating]) -> NDArray[np.float64]:
    """The componentwise residual of each inverse, evaluated in float64.

    ratio = max_ij |L L^T X - I|_ij / ((4 n + 1) u (|L| |L^T| |L^-T| |L^-1|)_ij), with u the unit roundoff of x's
    dtype. Higham, "Accuracy and Stability of Numerical Algorithms", section 14.3: the residuals of all good methods
    have bounds of this form (14.3.4, method D, is potri's), to first order, with a constant of the order of n. Here
    that has n + 1 for the factor, n for each of the two solves, and n for the elements of the other triangle, which
    are those of other rows.

    Parameters
    ----------
    l : ndarray, shape (batch, n, n)
        The factors, of which the lower triangle is read.
    x : ndarray, shape (batch, n, n)
        The inverses, both triangles.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where an inverse is not finite.
    """
    factor = np.tril(l.astype(np.float64))
    return within_scale(factor @ factor.swapaxes(-1, -2), factor, x)


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def within_scale(
    matrices: NDArray[np.float64], factor: NDArray[np.floating], x: NDArray[np.floating]
) -> NDArray[np.float64]:
    """The largest residual of each inverse in units of (4 n + 1) u |L| |L^T| |L^-T| |L^-1|; infinite if NaN."""
    n, inverse = x.shape[-1], x.astype(np.float64)
    size, inverted = np.abs(factor), np.abs(np.linalg.inv(factor))
    scale = (4 * n + 1) * float(np.finfo(x.dtype).eps) / 2
    allowed = scale * (size @ (size.swapaxes(-1, -2) @ (inverted.swapaxes(-1, -2) @ inverted)))
    error = np.abs(matrices @ inverse - np.eye(n))
    worst = np.max(np.where(error == 0, 0.0, error / allowed), axis=(-1, -2), initial=0.0)
    finite = np.isfinite(inverse).all(axis=(-1, -2))
    return np.asarray(np.where(finite & ~np.isnan(worst), worst, np.inf), dtype=np.float64)


def check_members(
    ratios_of: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]],
    given: Batch,
    x: Any,
    info: Any,
    math: str,
    *,
    upper: bool = False,
    samples: int = 128,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
) -> float:
    """Check inverses by a batch: every info is 0, and those of evenly spread members are within the bound.

    Parameters
    ----------
    ratios_of : callable
        The residual of inverses (batch, n, n) by lower triangles.
    given : Batch
        The factors or matrices, in any layout.
    x : array, shape (batch, n, n)
        The inverses.
    info : array of int32, shape (batch,)
        What the kernel said of each.
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
    check_info(host(info)[: given.batch])
    members = spread_members(given.batch, samples)
    lower = lower_triangles(given, members, upper, host)
    seen = [float(ratios_of(each, host(x[m : m + 1]))[0]) for m, each in zip(members, lower, strict=True)]
    return worst_within(seen, members, RATIO_BOUND[math], math, "inverses of the residual ratio", "they are wrong")


def check_packed(
    check: Callable[..., float],
    given: Batch,
    x: Batch,
    info: Any,
    math: str,
    *,
    upper: bool = False,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
    **how: Any,
) -> float:
    """A check of inverses, such as `check`, of a batch that has one triangle of each; the other one is the same."""

    def from_anywhere(array: Any) -> NDArray[Any]:
        return array if isinstance(array, np.ndarray) else host(array)

    half = from_anywhere(x.to_dense())
    half = np.triu(half) if upper else np.tril(half)
    whole = half + half.swapaxes(-1, -2) - half * np.eye(x.n, dtype=half.dtype)
    return check(given, whole, info, math, upper=upper, host=from_anywhere, **how)


check = partial(check_members, ratios)
"""`check_members` of inverses by factors."""
