"""QR factorizations and least squares: the backward errors that count, by columns, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.errors import ResidualError
from batchchol.operations.residual import largest_ratios, spread_members, worst_within

# What `factor_ratios`, `orthogonality_ratios` and `solve_ratios` may be. LAPACK's own reach 1.7 where there are two
# rows (of 60,000 random matrices). `fast` has estimates of roots and quotients.
BOUND: Mapping[str, float] = MappingProxyType({"ieee": 2.0, "fast": 4.0})
# Roundings of a reflector, whatever its length.
OWN = 4


def orthogonal(qr: NDArray[np.floating], tau: NDArray[np.floating]) -> NDArray[np.float64]:
    """Q (batch, m, m) of factors (batch, m, n), the product of their reflectors, evaluated in float64."""
    count, m, _ = qr.shape
    q = np.broadcast_to(np.eye(m), (count, m, m)).copy()
    for k in range(tau.shape[-1]):
        v = np.concatenate([np.zeros((count, k)), np.ones((count, 1)), qr[:, k + 1 :, k].astype(np.float64)], axis=-1)
        q -= (q @ v[..., None]) * (v * tau[:, k, None].astype(np.float64))[:, None]
    return q


@np.errstate(all="ignore")
def factor_ratios(
    a: NDArray[np.floating], qr: NDArray[np.floating], tau: NDArray[np.floating]
) -> NDArray[np.float64]:
    """The backward error of the factors of each matrix (m, n), by columns, evaluated in float64.

    ratio = max_j |A - Q R|_j / ((m + n + 4) u |A|_j), with 2-norms of columns, Q the product of the reflectors and u
    the unit roundoff of the factors' dtype. Higham, "Accuracy and Stability of Numerical Algorithms", theorem 19.4,
    has m n in place of m + n + 4, for rounding errors that never cancel.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where a factor is not finite.
    """
    return largest_ratios(*_residual(a, orthogonal(qr, tau), qr), qr, tau)


@np.errstate(all="ignore")
def orthogonality_ratios(q: NDArray[np.floating], dtype: Any) -> NDArray[np.float64]:
    """How far columns of each q (m, n) are from orthonormal: max |I - Q^T Q|_ij / ((m + n + 4) u), by dtype."""
    m, n = q.shape[-2:]
    wide = q.astype(np.float64)
    error = np.abs(np.eye(n) - wide.swapaxes(-1, -2) @ wide).max(-1, initial=0)
    return largest_ratios(error, (m + n + OWN) * _unit(np.empty(0, dtype)) * np.ones_like(error), q)


@np.errstate(all="ignore")
def solve_ratios(a: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating]) -> NDArray[np.float64]:
    """The backward error of least-squares solutions by each matrix (m, n), evaluated in float64.

    ratio = max |a_j^T (b - A x)| / ((m + n + 4) u |a_j| (|b| + sum_l |a_l| |x_l|)), over columns j of A and the pairs
    b and x, with 2-norms and u the unit roundoff of x's dtype. A solution by columns of A that are off by
    (m + n + 4) u / 2 of their norms has a ratio of 1 at most, to first order (Higham, "Accuracy and Stability of
    Numerical Algorithms", theorem 20.3).

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where a solution is not finite; 0 where there is none.
    """
    m, n = a.shape[-2:]
    wide, solution = a.astype(np.float64), x.astype(np.float64)
    columns = np.linalg.norm(wide, axis=-2)
    residual = np.abs(wide.swapaxes(-1, -2) @ (b.astype(np.float64) - wide @ solution))
    size = np.linalg.norm(b.astype(np.float64), axis=-2) + (columns[:, None] @ np.abs(solution))[:, 0]
    return largest_ratios(residual, (m + n + OWN) * _unit(x) * columns[..., None] * size[:, None], x)


def check_factors(
    a: Any,
    qr: Any,
    tau: Any,
    math: str,
    *,
    upper: bool = False,
    samples: int = 128,
    host: Callable[[Any], NDArray[Any]] = np.asarray,
) -> float:
    """Check factors of evenly spread matrices of a batch: their residual, and that Q is orthogonal. `upper` is False.

    Returns
    -------
    float
        The largest ratio seen.

    Raises
    ------
    ResidualError
        If the check fails: the numbers measured with this result must not be stored.
    """
    members, scalars = spread_members(a.batch, samples), host(tau)
    seen = []
    for m in members:
        factors, scalar = host(qr.get(m, m + 1)), scalars[m : m + 1]
        made = orthogonality_ratios(orthogonal(factors, scalar), factors.dtype)
        seen.append(float(max(factor_ratios(host(a.get(m, m + 1)), factors, scalar)[0], made[0])))
    return worst_within(seen, members, BOUND[math], math, "factors of the residual ratio", "they are wrong")


def check_product(
    a: Any, q: Any, r: Any, math: str, *, samples: int = 128, host: Callable[[Any], NDArray[Any]] = np.asarray
) -> float:
    """Check Q and R of evenly spread matrices of a batch as `check_factors` does reflectors."""
    members = spread_members(a.batch, samples)
    seen = []
    for m in members:
        given, columns, upper = (host(each.get(m, m + 1)) for each in (a, q, r))
        error = _residual(given, columns.astype(np.float64), upper)
        seen.append(float(max(largest_ratios(*error, upper)[0], orthogonality_ratios(columns, columns.dtype)[0])))
    return worst_within(seen, members, BOUND[math], math, "Q and R of the residual ratio", "they are wrong")


def check(
    a: Any,
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
    status = host(info)[: a.batch]
    if bad := np.flatnonzero(status).tolist():
        raise ResidualError(f"matrix {bad[0]} has info {status[bad[0]]}: R has a zero, or nothing was written")
    members = spread_members(a.batch, samples)
    seen = [float(solve_ratios(host(a.get(m, m + 1)), host(b[m : m + 1]), host(x[m : m + 1]))[0]) for m in members]
    return worst_within(seen, members, BOUND[math], math, "solutions of the residual ratio", "they are wrong")


def _residual(
    a: NDArray[np.floating], q: NDArray[np.float64], r: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """|A - Q R|, of the upper part of r, and what it may be in r's dtype, of each column."""
    m, n = a.shape[-2:]
    wide = a.astype(np.float64)
    # Columns may be huge or tiny: squares of float64 have to stay in range.
    sizes = np.abs(wide).max(-2, keepdims=True, initial=0)
    sizes = np.where((sizes > 0) & np.isfinite(sizes), sizes, 1)
    error = np.linalg.norm(wide / sizes - q @ (np.triu(r.astype(np.float64)) / sizes), axis=-2)
    return error, (m + n + OWN) * _unit(r) * np.linalg.norm(wide / sizes, axis=-2)


def _unit(of: NDArray[np.floating]) -> float:
    """The unit roundoff of an array's dtype."""
    return float(np.finfo(of.dtype).eps) / 2
