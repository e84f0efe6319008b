"""A guided search: in rounds, each case asks its strategy for points, which are compiled, measured and told."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from batchchol.measure.dataset import DataSet
from batchchol.measure.point import Point
from batchchol.progress import Progress, Show
from batchchol.tune.choosing.winners import grouped
from batchchol.tune.compile import Built
from batchchol.tune.search.cases import Budget, Case, Code, Lesson, case_of
from batchchol.tune.search.strategies import Strategy, make
from batchchol.tune.sweep import Summary

MOST_AHEAD = 2
"""Points of a case that are asked for before the first of them is told: strategies find less with more (docs)."""

Build = Callable[[Sequence[Point]], Built]
Done = Mapping[str, float | None]


@dataclass
class Search:
    """The search of one case.

    Attributes
    ----------
    case : Case
    points : sequence of Point
        All of the case.
    strategy : Strategy
    budget : int
        Points that may be measured, those included that were known before.
    told : dict of str to (Point, float or None)
        What is known, by the points' keys.
    """

    case: Case
    points: Sequence[Point]
    strategy: Strategy
    budget: int
    told: dict[str, tuple[Point, float | None]] = field(default_factory=dict)

    def learn(self, done: Done, points: Iterable[Point]) -> None:
        """Tell the strategy which of the points are known by now."""
        for point in points:
            key = point.known_as(done)
            if key is not None and point.key not in self.told:
                self.told[point.key] = point, done[key]
                self.strategy.tell(point, done[key])

    @property
    def left(self) -> int:
        """Points that may still be measured."""
        return max(0, min(self.budget, len(self.points)) - len(self.told))

    @property
    def best(self) -> tuple[Point, float] | None:
        """The fastest point so far and its seconds; None if no point has a number."""
        correct = [(point, seconds) for point, seconds in self.told.values() if seconds is not None]
        return min(correct, key=lambda pair: pair[1], default=None)


def prepare(
    points: Sequence[Point],
    strategy: str,
    budget: Budget,
    done: Done,
    seed: int = 0,
    taught: Sequence[Lesson] = (),
    codes: Mapping[str, Code] = MappingProxyType({}),
) -> list[Search]:
    """The searches of the points' cases, told what is known.

    Raises
    ------
    BatchcholError
        If the strategy needs a package that is not installed.
    """
    cases = grouped(points, case_of)
    strategies = make(strategy, list(cases.values()), seed, taught, codes)
    searches = []
    for (case, mine), each in zip(cases.items(), strategies, strict=True):
        search = Search(case, mine, each, budget.of(len(mine)))
        search.learn(done, mine)
        searches.append(search)
    return searches


def guided(
    searches: Sequence[Search],
    build: Build,
    measure: Callable[..., Summary],
    data: DataSet,
    *,
    ahead: int = 1,
    space: str = "",
    seconds: float | None = None,
    show: Show = lambda _: None,
) -> Summary:
    """Search until every budget is spent; every row is kept before the next is measured, as in a sweep.

    An interrupt, or `seconds` that are over, costs what was being compiled and measured; the next call goes on with
    what the data set has.

    Parameters
    ----------
    build, measure : callable
        What compiles points, see `compile.build`, and what measures them, see `sweep.sweep`.
    ahead : int
        Points that are asked for in a round, spread over the cases: at least one, and at most `MOST_AHEAD`, of each.
    space : str
        What the column of that name says.

    Raises
    ------
    MachineFailure
        If nothing can be measured any more.
    DataFileError
        If a row cannot be kept.
    """
    total, begin = sum(search.left for search in searches), time.monotonic()
    end = math.inf if seconds is None else begin + seconds
    summary = Summary()

    def show_all(here: Progress) -> None:
        """How far all rounds are, by how far this one is."""
        done, failed = summary.statuses.total() + here.done, summary.lost + here.failed
        show(Progress.since(begin, done, total, failed, "points"))

    while time.monotonic() < end and (asked := _ask(searches, ahead)):
        built = build([point for points in asked.values() for point in points])
        # Code for any block gives way to own code, which may have been asked for as well.
        unique = list({point.key: point for point in built.points}.values())
        left = None if seconds is None else end - time.monotonic()
        done = measure(unique, data, space=space, failed=built.failed, seconds=left, show=show_all)
        summary = summary.plus(Summary(done.statuses))
        for number, points in asked.items():
            searches[number].learn(data.done, points)
    return Summary(summary.statuses, sum(search.left for search in searches))


def _ask(searches: Sequence[Search], ahead: int) -> dict[int, list[Point]]:
    """What every case wants next, by its number."""
    active = [number for number, search in enumerate(searches) if search.left]
    each = min(max(1, ahead // max(1, len(active))), MOST_AHEAD)
    asked = {}
    for number in active:
        search = searches[number]
        points = [point for _ in range(min(each, search.left)) if (point := search.strategy.ask()) is not None]
        if points:
            asked[number] = points
    return asked
