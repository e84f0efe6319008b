"""The measuring stage of a sweep: points that are not done yet, one after another, each kept before the next is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from batchchol.measure.dataset import DataSet
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row, Value
from batchchol.progress import Progress, Show

Group = tuple[int, int, str]


@dataclass(frozen=True)
class Summary:
    """What a sweep did: how many points it measured, with which status, and how many are left."""

    statuses: Counter[str] = field(default_factory=Counter)
    left: int = 0

    @property
    def lost(self) -> int:
        """How many points should have been measured and could not be."""
        return self.statuses.total() - self.statuses["correct"] - self.statuses["unsupported"]

    def plus(self, other: Summary) -> Summary:
        """The sum of two summaries."""
        return Summary(self.statuses + other.statuses, self.left + other.left)


def sweep(
    points: Sequence[Point],
    measurer: Measurer,
    data: DataSet,
    *,
    space: str = "",
    failed: Iterable[Row] = (),
    seconds: float | None = None,
    show: Show = lambda _: None,
) -> Summary:
    """Measure the points that the data set lacks.

    While a point is measured the row before it is written: an abrupt end costs the point in work, and at most the one
    before. An interrupt, or `seconds` that are over, ends it after a finished point.

    Parameters
    ----------
    space : str
        What the column of that name says.
    failed : iterable of Row
        Points that have no kernel.

    Raises
    ------
    MachineFailure
        If nothing can be measured any more.
    DataFileError
        If a row cannot be kept.
    """
    keeper = Keeper(data, space)
    keeper.keep_failed(failed, measurer.about)
    pending = [point for point in points if point.key not in data.done]
    clock = Estimate(pending)
    begin = time.monotonic()
    waiting: Row | None = None
    done = 0
    try:
        for point in pending:
            if seconds is not None and time.monotonic() - begin > seconds:
                break
            measurer.submit(point)
            if waiting is not None:
                keeper.keep(waiting)
            waiting = measurer.result()
            done += 1
            clock.add(point)
            elapsed = time.monotonic() - begin
            show(Progress(done, len(pending), 0, keeper.summary.lost, elapsed, clock.seconds_left(), "points"))
    finally:
        if waiting is not None and waiting.point.key not in data.done:
            keeper.keep(waiting)
    return Summary(keeper.summary.statuses, len(pending) - done)


@dataclass(frozen=True)
class Keeper:
    """Puts rows of a space into a data set, and counts them by status."""

    data: DataSet
    space: str
    summary: Summary = field(default_factory=Summary)

    def keep(self, row: Row) -> None:
        """Append one row."""
        self.data.append(replace(row, about={**row.about, "space": self.space}))
        self.summary.statuses[row.status] += 1

    def keep_failed(self, rows: Iterable[Row], about: Callable[[str, int], Mapping[str, Value]]) -> None:
        """Append the rows of points without a kernel, with the machine's columns from `about`."""
        for row in rows:
            if row.point.key not in self.data.done:
                self.keep(replace(row, about=about(row.point.spec.problem.dtype, row.point.threads)))


class Estimate:
    """How long the remaining points will take, estimated from similar ones that are done.

    Points of the same order, batch and family are alike. Where nothing alike was measured, the time is that of a line
    through all groups that were: a constant for each point, and a rate for its flops.
    """

    def __init__(self, points: Iterable[Point]) -> None:
        self._left = Counter(_group(point) for point in points)
        self._seconds: dict[Group, tuple[int, float]] = {}
        self._last = time.monotonic()

    def add(self, point: Point, now: float | None = None, took: float | None = None) -> None:
        """Count a point as done now; it `took` that many seconds, or all since the one before."""
        now = time.monotonic() if now is None else now
        group = _group(point)
        count, seconds = self._seconds.get(group, (0, 0.0))
        self._seconds[group] = count + 1, seconds + (now - self._last if took is None else took)
        self._left[group] -= 1
        self._last = now

    def seconds_left(self) -> float | None:
        """None until a point is done."""
        if not self._seconds:
            return None
        means = {group: seconds / count for group, (count, seconds) in self._seconds.items()}
        unseen = [group for group, left in self._left.items() if left and group not in means]
        expected = means | _line(means, unseen)
        return sum(left * expected[group] for group, left in self._left.items() if left)


def _line(means: Mapping[Group, float], unseen: Sequence[Group]) -> dict[Group, float]:
    """Seconds of points of other groups, never less than those of the quickest known group."""
    if not unseen:
        return {}
    work = np.array([_work(group) for group in means])
    seconds = np.array(list(means.values()))
    # If all have the same amount of work, the line is level.
    slope = max(0.0, float(np.polyfit(work, seconds, 1)[0])) if np.ptp(work) > 0 else 0.0
    offset = float(np.mean(seconds - slope * work))
    least = float(seconds.min())
    return {group: max(least, offset + slope * _work(group)) for group in unseen}


def _group(point: Point) -> Group:
    return point.spec.problem.n, point.batch, point.spec.family


def _work(group: Group) -> float:
    n, batch, _ = group
    return n**3 * float(batch)
