"""LU factorizations and solves by them: the oracle, and the backward errors that count, componentwise, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.errors import ResidualError
from batchchol.operations.residual import largest_ratios, spread_members, worst_within

# A factorization has one rounding for each product that is subtracted and one for a quotient; `fast` has one more.
FACTOR_BOUND: Mapping[str, float] = MappingProxyType({"ieee": 1.0, "fast": 2.0})
SOLVE_BOUND: Mapping[str, float] = MappingProxyType({"ieee": 1.0, "fast": 2.0})


def oracle(a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
    """The solutions (batch, n, nrhs) of A X = B, for A (batch, n, n), by LAPACK in float64."""
    return np.asarray(np.linalg.solve(a.astype(np.float64), b.astype(np.float64)))


def permuted(a: NDArray[Any], pivots: NDArray[np.integer]) -> NDArray[Any]:
    """P A for matrices (batch, n, n): rows k and pivots[k] - 1 change places, for k = 0 ... n - 1."""
    moved, members = a.copy(), np.arange(len(a))
    for k in range(a.shape[-1]):
        rows = pivots[:, k] - 1
        moved[members, rows], moved[:, k] = moved[:, k].copy(), moved[members, rows]
    return moved


@np.errstate(all="ignore")
def factor_ratios(
    a: NDArray[np.floating], lu: NDArray[np.floating], pivots: NDArray[np.integer]
) -> NDArray[np.float64]:
    """The componentwise backward error of the factors of each matrix, evaluated in float64.

    ratio = max_ij |P A - L U|_ij / (n u (|L| |U|)_ij), with u the unit roundoff of the factors' dtype. Higham,
    "Accuracy and Stability of Numerical Algorithms", theorem 9.3: at most 1 for correctly rounded operations, short
    of underflow and overflow.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where a factor is not finite.
    """
    n, wide = a.shape[-1], lu.astype(np.float64)
    lower, upper = np.tril(wide, -1) + np.eye(n), np.triu(wide)
    error = np.abs(permuted(a.astype(np.float64), pivots) - lower @ upper)
    allowed = n * float(np.finfo(lu.dtype).eps) / 2 * (np.abs(lower) @ np.abs(upper))
    return largest_ratios(error, allowed, wide)


@np.errstate(all="ignore")
def growth(a: NDArray[np.floating], lu: NDArray[np.floating]) -> NDArray[np.float64]:
    """What elements grow by while each matrix is factored: max_ij |U|_ij / max_ij |A|_ij, at most 2**(n - 1)."""
    largest = np.abs(np.triu(lu)).max(axis=(-2, -1), initial=0) / np.abs(a).max(axis=(-2, -1), initial=0)
    return np.asarray(largest, np.float64)


@np.errstate(all="ignore")
def solve_ratios(a: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating]) -> NDArray[np.float64]:
    """The componentwise backward error of the solutions by each matrix, evaluated in float64.

    ratio = max_ij |B - A X|_ij / (3 n u (P^T |L| |U| |X|)_ij), with L and U the float64 factors of A and u the unit
    roundoff of x's dtype. Higham, "Accuracy and Stability of Numerical Algorithms", theorem 9.4: at most 1 for
    correctly rounded operations, short of underflow and overflow, where the pivots are those of the factors.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where a solution is not finite; 0 where there is none.
    """
    import scipy.linalg

    wide, solution = a.astype(np.float64), x.astype(np.float64)
    scale = np.empty_like(wide)
    for member, matrix in enumerate(wide):
        rows, lower, upper = scipy.linalg.lu(matrix, p_indices=True, check_finite=False)
        scale[member] = (np.abs(lower) @ np.abs(upper))[rows]
    allowed = 3 * a.shape[-1] * float(np.finfo(x.dtype).eps) / 2 * (scale @ np.abs(solution))
    return largest_ratios(np.abs(b - wide @ solution), allowed, solution)


def check_factors(
    a: Batch,
    lu: Batch,
    pivots: Any,
    info: Any,
    math: str,
    *,
    upper: bool = False,
    samples: int = 128,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
) -> float:
    """Check a factored batch: every info is 0, and the factors of evenly spread matrices are within their bound.

    General matrices have no triangle: `upper` is False.

    Returns
    -------
    float
        The largest ratio seen.

    Raises
    ------
    ResidualError
        If the check fails: the numbers measured with this result must not be stored.
    """
    _check_info(host(info)[: a.batch])
    members, rows = spread_members(a.batch, samples), host(pivots)
    seen = [float(factor_ratios(host(a.get(m, m + 1)), host(lu.get(m, m + 1)), rows[m : m + 1])[0]) for m in members]
    return worst_within(seen, members, FACTOR_BOUND[math], math, "factors of the residual ratio", "they are wrong")


def check(
    a: Batch,
    b: Any,
    x: Any,
    info: Any,
    math: str,
    *,
    upper: bool = False,
    samples: int = 128,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
) -> float:
    """Check solutions for a batch of matrices as `check_factors` does factors; `upper` is False."""
    _check_info(host(info)[: a.batch])
    members = spread_members(a.batch, samples)
    seen = [float(solve_ratios(host(a.get(m, m + 1)), host(b[m : m + 1]), host(x[m : m + 1]))[0]) for m in members]
    return worst_within(seen, members, SOLVE_BOUND[math], math, "solutions of the residual ratio", "they are wrong")


def _check_info(info: NDArray[np.integer]) -> None:
    """Refuse an info that is not 0, of which the message says that of an LU factorization."""
    bad = np.flatnonzero(info)
    if len(bad):
        raise ResidualError(f"matrix {bad[0]} has info {info[bad[0]]}: a pivot is zero, or nothing was written")
