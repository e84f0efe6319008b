"""Factoring and solving at once: the oracle, and the backward error that counts, componentwise, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.operations.potrs import ratio_bound, within_scale
from batchchol.operations.residual import check_info, spread_members, worst_within


def oracle(a: NDArray[np.floating], b: NDArray[np.floating], upper: bool = False) -> NDArray[np.float64]:
    """The solutions (batch, n, nrhs) of A X = B, for A (batch, n, n), of which a triangle is read, in float64."""
    from scipy.linalg import solve

    solved = [
        solve(matrix, columns, lower=not upper, assume_a="pos", check_finite=False)
        for matrix, columns in zip(a.astype(np.float64), b.astype(np.float64), strict=True)
    ]
    return np.array(solved, np.float64).reshape(b.shape)


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def ratios(a: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating]) -> NDArray[np.float64]:
    """The componentwise backward error of the solutions of each matrix, evaluated in float64.

    ratio = max_ij |B - A X|_ij / ((3 n + 1) u (|L| |L^T| |X|)_ij), with L the float64 factor of A and u the unit
    roundoff of x's dtype. Higham, "Accuracy and Stability of Numerical Algorithms", theorem 10.4: at most 1 for
    correctly rounded operations, short of underflow and overflow.

    Parameters
    ----------
    a : ndarray, shape (batch, n, n)
        The matrices, of which the lower triangle is read; positive definite.
    b, x : ndarray, shape (batch, n, nrhs)
        The right-hand sides and the solutions.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where a solution is not finite; 0 where there is none.
    """
    lower = np.tril(a.astype(np.float64))
    matrices = lower + np.tril(lower, -1).swapaxes(-1, -2)
    solution = x.astype(np.float64)
    factor = np.linalg.cholesky(matrices)
    return within_scale(np.abs(b - matrices @ solution), factor, solution, x.dtype)


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
    """Check solutions for a batch of SPD matrices: every info is 0, and those of evenly spread matrices, both ends
    included, are within the bound of their class.

    Parameters
    ----------
    a : Batch
        The matrices, in any layout.
    b, x : array, shape (batch, n, nrhs)
        The right-hand sides and the solutions.
    info : array of int32, shape (batch,)
        What the kernel said of each matrix.
    math, upper, samples, host
        As for `potrs.check`.

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
    members = spread_members(a.batch, samples)
    seen = [_member_ratio(a, b, x, m, upper or a.triangle == "upper", host) for m in members]
    return worst_within(
        seen, members, ratio_bound(a.n, math), math, "solutions of the residual ratio", "they are wrong"
    )


def _member_ratio(a: Batch, b: Any, x: Any, m: int, upper: bool, host: Callable[[Any], NDArray[Any]]) -> float:
    member = slice(m, m + 1)
    matrix = host(a.get(m, m + 1))
    lower = matrix.swapaxes(-1, -2) if upper else matrix
    return float(ratios(lower, host(b[member]), host(x[member]))[0])
