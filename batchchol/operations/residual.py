"""The residual that counts: componentwise, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.errors import ResidualError

# Columns multiplied by a rounded reciprocal may pass 1, which is a theorem where they are divided.
RATIO_BOUND: Mapping[str, float] = MappingProxyType({"ieee": 1.5, "fast": 4.0})
_SLICE_BYTES = 1 << 24


def ratios(a: NDArray[np.floating], l: NDArray[np.floating], dtype: str | None = None) -> NDArray[np.float64]:
    """The componentwise residual ratio of each lower factor, evaluated in float64.

    ratio = max_ij |A - L L^T|_ij / ((n + 1) u (|L| |L|^T)_ij) over the lower triangle, with u the unit roundoff of
    `dtype`, by default that of `l`. Higham, "Accuracy and Stability of Numerical Algorithms", theorem 10.3: at
    most 1 for any order of evaluation with correctly rounded operations.

    Parameters
    ----------
    a, l : ndarray, shape (batch, n, n)
        The matrices, of which the lower triangle counts, and their factors, of which the lower triangle is read.

    Returns
    -------
    ndarray of float64, shape (batch,)
        Infinite where a factor is not finite, or its diagonal not positive.
    """
    n = a.shape[-1]
    unit = float(np.finfo(dtype or l.dtype).eps) / 2
    count = max(1, _SLICE_BYTES // (8 * n * n))
    parts = [
        _slice_ratios(a[start : start + count], l[start : start + count], (n + 1) * unit)
        for start in range(0, len(a), count)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


@np.errstate(divide="ignore", invalid="ignore")
def _slice_ratios(a: NDArray[np.floating], l: NDArray[np.floating], scale: float) -> NDArray[np.float64]:
    factor = np.tril(l.astype(np.float64))
    magnitude = np.abs(factor)
    error = np.tril(np.abs(a.astype(np.float64) - factor @ factor.swapaxes(-1, -2)))
    allowed = scale * (magnitude @ magnitude.swapaxes(-1, -2))
    quotient = np.where(error == 0, 0.0, error / allowed)
    worst = np.max(quotient, axis=(-1, -2))
    # A column of the wrong sign gives the same product, and a NaN is no number at all.
    positive = np.all(np.diagonal(factor, axis1=-2, axis2=-1) > 0, axis=-1)
    return np.asarray(np.where(positive & ~np.isnan(worst), worst, np.inf), dtype=np.float64)


def check(a: Batch, l: Batch, info: NDArray[np.int32], math: str, *, samples: int = 128) -> float:
    """Check a factored batch of SPD matrices: every info is 0, and evenly spread matrices, both ends included, are
    within the bound of their accuracy class.

    Returns
    -------
    float
        The largest ratio seen.

    Raises
    ------
    ResidualError
        If the check fails: the numbers measured with this result must not be stored.
    """
    members = spread_members(a.batch, samples)
    seen = np.array([_member_ratio(a, l, m) for m in members])
    return judge(info[: a.batch], seen, members, math)


def spread_members(batch: int, count: int) -> list[int]:
    """The indices of at most `count` matrices of a batch, evenly spread, both ends included."""
    found: list[int] = np.unique(np.linspace(0, batch - 1, min(count, batch)).astype(int)).tolist()
    return found


def lower_triangles(
    batch: Batch, members: Iterable[int], upper: bool, host: Callable[[Any], NDArray[Any]]
) -> Iterator[NDArray[Any]]:
    """Some matrices of a batch, (1, n, n) each, transposed if the upper triangle is the one that has a meaning."""
    for member in members:
        matrix = host(batch.get(member, member + 1))
        yield matrix.swapaxes(-1, -2) if upper or batch.triangle == "upper" else matrix


def worst_within(
    seen: Sequence[float] | NDArray[np.float64], members: Sequence[int], bound: float, math: str, has: str, are: str
) -> float:
    """The largest of the ratios of some matrices, 0 of none; `has` and `are` say of what it is and what is wrong.

    Raises
    ------
    ResidualError
        If it is over the bound; names the matrix.
    """
    if not len(seen):
        return 0.0
    worst = int(np.argmax(seen))
    if not seen[worst] <= bound:
        raise ResidualError(
            f"matrix {members[worst]} has {has} {seen[worst]:.3g}, over the bound of {bound} for math={math!r}: {are}"
        )
    return float(seen[worst])


def largest_ratios(
    error: NDArray[np.float64], allowed: NDArray[np.float64], *made: NDArray[np.floating]
) -> NDArray[np.float64]:
    """The largest error of each matrix in units of what is allowed; infinite if what was made is not finite."""
    ratio = np.where(error == 0, 0.0, error / allowed).max(tuple(range(1, error.ndim)), initial=0.0)
    finite = np.logical_and.reduce([np.isfinite(each).all(tuple(range(1, each.ndim))) for each in made])
    return np.asarray(np.where(finite & ~np.isnan(ratio), ratio, np.inf), np.float64)


def judge(info: NDArray[np.int32], seen: NDArray[np.float64], members: Sequence[int], math: str) -> float:
    """The largest of the ratios `seen` of the matrices `members`, if it is within the bound and every info is 0.

    Of no matrices it is 0.

    Raises
    ------
    ResidualError
        If not; names the matrix.
    """
    check_info(info)
    return worst_within(seen, members, RATIO_BOUND[math], math, "the residual ratio", "the factor is wrong")


def check_info(info: NDArray[np.int32]) -> None:
    """Refuse an info other than 0: the matrices are positive definite.

    Raises
    ------
    ResidualError
        Names the first such matrix.
    """
    if info.any():
        first = int(np.flatnonzero(info)[0])
        raise ResidualError(f"matrix {first} has info {info[first]}, expected 0 of an SPD matrix")


def _member_ratio(a: Batch, l: Batch, m: int) -> float:
    matrix, factor = a.get(m, m + 1), l.get(m, m + 1)
    if l.triangle == "upper":
        # A = U^T U: the lower factor of the same matrix is U^T.
        matrix, factor = matrix.swapaxes(-1, -2), factor.swapaxes(-1, -2)
    return float(ratios(matrix, factor)[0])
