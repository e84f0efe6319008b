"""Whether two sweeps of the same space choose the same kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from batchchol.errors import BatchcholError
from batchchol.measure.dataset import KEY_COLUMNS
from batchchol.report import pivots
from batchchol.report.data import require

BOUND = 0.03
"""A winner that is so little behind counts as as good: what replaces a default must be faster by more."""

TARGET = 0.95
"""The share of the sizes that should agree."""


@dataclass(frozen=True)
class Stability:
    """Two sweeps beside each other.

    Attributes
    ----------
    table : pandas.DataFrame
        A line for each order and accuracy class that both have: `n`, `math`; `first`, `second`, the winners' specs;
        `same`; `first_in_second`, the share by which the first's winner misses the best of the second sweep, and
        `second_in_first` (NaN where the other sweep lacks it); `agrees`, that both are at most `BOUND`.
    ratios : pandas.Series
        The time in the second sweep over that in the first, of each point that both have.
    alone : int
        Points that only one of them has.
    """

    table: Any
    ratios: Any
    alone: int

    @property
    def share(self) -> float:
        """Of the sizes, those that agree."""
        return float(self.table["agrees"].mean())

    @property
    def same(self) -> int:
        """Sizes with the very same winner."""
        return int(self.table["same"].sum())

    @property
    def worst(self) -> float:
        """The most that a winner misses the best of the other sweep by."""
        return float(self.table[["first_in_second", "second_in_first"]].max(axis=None))

    @property
    def apart(self) -> Any:
        """The lines that do not agree."""
        return self.table[~self.table["agrees"]]


def compare(first: Any, second: Any) -> Stability:
    """Compare the winners of two sweeps, given the points of each that compare with one another.

    Raises
    ------
    BatchcholError
        If they have no order and accuracy class in common.
    """
    pandas, _ = require()
    # If a point was measured twice, the faster time counts.
    sweeps = (first, second)
    speeds = [rows["gflops"].groupby([rows[name].fillna(0) for name in KEY_COLUMNS]).max() for rows in sweeps]
    both = pandas.concat(speeds, axis=1, keys=(0, 1), join="inner")
    ours, theirs = (pivots.fastest(rows, ["n", "math"]).set_index(["n", "math"]) for rows in sweeps)
    sizes = ours.index.intersection(theirs.index)
    if not len(sizes):
        raise BatchcholError(
            "the two data sets have no order and accuracy class in common: sweep the same space twice"
        )
    lines = [_line(size, (ours.loc[size], theirs.loc[size]), speeds) for size in sizes]
    alone = len(speeds[0]) + len(speeds[1]) - 2 * len(both)
    return Stability(pandas.DataFrame(lines), both[0] / both[1], alone)


def _line(size: tuple[int, str], winners: tuple[Any, Any], speeds: list[Any]) -> dict[str, Any]:
    points = [tuple(winner[list(KEY_COLUMNS)].fillna(0)) for winner in winners]
    behind = [
        float(1 - speeds[other].get(points[1 - other], float("nan")) / winners[other]["gflops"]) for other in (1, 0)
    ]
    same = points[0] == points[1]
    return {
        "n": size[0],
        "math": size[1],
        "first": _named(winners[0]),
        "second": _named(winners[1]),
        "same": same,
        "first_in_second": behind[0],
        "second_in_first": behind[1],
        "agrees": same or all(share <= BOUND for share in behind),
    }


def _named(winner: Any) -> str:
    chunk = float(winner["chunk"])
    return str(winner["spec"]) + ("" if math.isnan(chunk) else f", chunk {chunk:.0f}")
