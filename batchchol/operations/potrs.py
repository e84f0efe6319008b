"""Solves by given factors: the oracle, and the backward error that counts, componentwise, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.operations.residual import spread_members, worst_within

# Two solves make up to 2 (n + 1) roundings, those of reciprocals among them, where the theorem allows 3 n + 1. The
# first orders leave no room for what rounds where a ratio is evaluated, and have a bound of their own.
RATIO_BOUND: Mapping[str, float] = MappingProxyType({"ieee": 1.0, "fast": 1.0})
SMALL_RATIO_BOUND: Mapping[str, float] = MappingProxyType({"ieee": 1.5, "fast": 2.5})
SMALL_ORDER = 2


def ratio_bound(n: int, math: str) -> float:
    """The largest ratio that solutions by factors of order `n` may have in an accuracy class."""
    return (SMALL_RATIO_BOUND if n <= SMALL_ORDER else RATIO_BOUND)[math]


def oracle(l: NDArray[np.floating], b: NDArray[np.floating], upper: bool = False) -> NDArray[np.float64]:
    """The solutions (batch, n, nrhs) by factors (batch, n, n), by LAPACK in float64."""
    from scipy.linalg import cho_solve

    solved = [
        cho_solve((factor, not upper), columns, check_finite=False)
        for factor, columns in zip(l.astype(np.float64), b.astype(np.float64), strict=True)
    ]
    return np.array(solved, np.float64).reshape(b.shape)


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def ratios(l: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating]) -> NDArray[np.float64]:
    """The componentwise backward error of the solutions of each matrix, evaluated in float64.

    ratio = max_ij |B - L L^T X|_ij / ((3 n + 1) u (|L| |L^T| |X|)_ij), with u the unit roundoff of x's dtype. Higham,
    "Accuracy and Stability of Numerical Algorithms", theorem 10.4: at most 1 for correctly rounded operations, short
    of underflow and overflow.

    Parameters
    ----------
    l : ndarray, shape (batch, n, n)
        The factors, of which the lower triangle is read.
    b, x : ndarray, shape (batch, n, nrhs)
        The right-hand sides and the solutions.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where a solution is not finite; 0 where there is none.
    """
    factor, solution = np.tril(l.astype(np.float64)), x.astype(np.float64)
    return within_scale(np.abs(b - factor @ (factor.swapaxes(-1, -2) @ solution)), factor, solution, x.dtype)


def within_scale(
    error: NDArray[np.float64], factor: NDArray[np.floating], solution: NDArray[np.float64], dtype: np.dtype[Any]
) -> NDArray[np.float64]:
    """The largest error of each matrix's solutions in units of (3 n + 1) u |L| |L^T| |X|; infinite if not finite."""
    magnitude = np.abs(factor)
    scale = (3 * factor.shape[-1] + 1) * float(np.finfo(dtype).eps) / 2
    allowed = scale * (magnitude @ (magnitude.swapaxes(-1, -2) @ np.abs(solution)))
    worst = np.max(np.where(error == 0, 0.0, error / allowed), axis=(-1, -2), initial=0.0)
    finite = np.isfinite(solution).all(axis=(-1, -2))
    return np.asarray(np.where(finite & ~np.isnan(worst), worst, np.inf), dtype=np.float64)


def check(
    l: Batch,
    b: Any,
    x: Any,
    math: str,
    *,
    upper: bool = False,
    samples: int = 128,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
) -> float:
    """Check solutions of a batch: evenly spread matrices, both ends included, are within the bound of their class.

    Parameters
    ----------
    l : Batch
        The factors, in any layout.
    b, x : array, shape (batch, n, nrhs)
        The right-hand sides and the solutions.
    math : str
        The accuracy class, "ieee" or "fast".
    upper : bool
        Whether the factors are U with A = U^T U; a batch whose triangle is known needs no word.
    samples : int
        How many matrices to look at, at most.
    host : callable
        Makes a NumPy array of one of the device where they all are, such as a backend's `host`.

    Returns
    -------
    float
        The largest ratio seen.

    Raises
    ------
    ResidualError
        If the check fails: the numbers measured with this result must not be stored.
    """
    members = spread_members(l.batch, samples)
    seen = [_member_ratio(l, b, x, slice(m, m + 1), upper or l.triangle == "upper", host) for m in members]
    what = "solutions of the residual ratio"
    return worst_within(seen, members, ratio_bound(l.n, math), math, what, "they are wrong")


def _member_ratio(l: Batch, b: Any, x: Any, member: slice, upper: bool, host: Callable[[Any], NDArray[Any]]) -> float:
    factor = host(l.get(member.start, member.stop))
    # A = U^T U: the lower factor of the same matrix is U^T.
    lower = factor.swapaxes(-1, -2) if upper else factor
    return float(ratios(lower, host(b[member]), host(x[member]))[0])
