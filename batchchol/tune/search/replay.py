"""The replay: strategies search in a data set of a whole sweep, and what they ask for is looked up there."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from batchchol.errors import DataFileError
from batchchol.measure import dataset
from batchchol.measure.point import Point
from batchchol.measure.row import Row, rows_of
from batchchol.parallel import in_processes
from batchchol.progress import Progress, Show
from batchchol.tune.choosing.winners import grouped
from batchchol.tune.search.cases import CODE, Case, Code, case_of, code_of, lessons_of
from batchchol.tune.search.strategies import STRATEGIES, TOGETHER, Strategy, make

LEAST_POINTS = 100
"""A case of fewer has nothing to search: 5% of it are a handful."""

CLOSE = (0.05, 0.01)
"""How close to the best of a case a search has to come."""

SHARE = 0.05
"""Of the points of a case that a search should need at most."""

EARLY = 0.03
"""Of the points of a case: what the best strategies need."""

FARTHEST = 0.15
"""The share of a case after which a strategy that takes time to think is stopped."""

TAUGHT = "taught"
"""A case alone by `transfer`, which has been told all there is of the other orders, and what the compiler says."""

_QUICK = ("exhaustive", "random")
_COLUMNS = ("definition", "batch", "chunk", "threads", "protocol", "any_block", "status", "median_seconds", "spread")
_ALL = (*_COLUMNS, *CODE)


@dataclass(frozen=True)
class Surface:
    """What is known of a case.

    Attributes
    ----------
    case : Case
    points : tuple of Point
    seconds : tuple of float or None
        Each point's median; None where there is no number.
    noise : float
        The median of the points' spreads: interquartile range of a point's samples over their median.
    codes : tuple of Code
        What compilers said of the points' kernels.
    """

    case: Case
    points: tuple[Point, ...]
    seconds: tuple[float | None, ...]
    noise: float
    codes: tuple[Code, ...]

    @property
    def best(self) -> float:
        """The time of the fastest point, in seconds."""
        return min(seconds for seconds in self.seconds if seconds is not None)

    def near(self, close: float) -> int:
        """How many points are that close to the best."""
        return sum(seconds is not None and seconds <= self.best * (1 + close) for seconds in self.seconds)


@dataclass(frozen=True)
class Run:
    """One search: how far the best so far was from the best of all, as a share of it, after each measurement.

    It ends when the best is found, or after the share of the points that its strategy may look at.
    """

    number: int
    strategy: str
    repeat: int
    regret: tuple[float, ...]

    def needed(self, close: float) -> float:
        """Measurements until it was that close; infinite if it never was."""
        return next((count for count, regret in enumerate(self.regret, start=1) if regret <= close), math.inf)

    def after(self, count: int) -> float:
        """The regret after a number of measurements."""
        return self.regret[min(count, len(self.regret)) - 1]


@dataclass(frozen=True)
class Task:
    """Runs to make: the numbers of their surfaces, and how many points are asked for before the first is told."""

    numbers: tuple[int, ...]
    strategy: str
    repeat: int
    ahead: int = 1


def load(path: Path, warn: dataset.Warn = lambda _: None) -> list[Surface]:
    """The cases of a data set, a folder or a file, that have enough points, by n.

    A finalist that was measured once more with own code counts once.

    Raises
    ------
    DataFileError
        If it cannot be read, or has no such case.
    """
    known = dataset.read(path, warn)
    rows = known.select([name for name in _ALL if name in known.column_names]).to_pylist()
    chosen: dict[str, tuple[Row, Code]] = {}
    for values in rows:
        for row in rows_of([values]):
            if row.point.own.key not in chosen or row.point.any_block:
                chosen[row.point.own.key] = row, code_of(values)
    cases = grouped(chosen.values(), lambda pair: case_of(pair[0].point))
    surfaces = [_surface(case, cases[case]) for case in sorted(cases) if len(cases[case]) >= LEAST_POINTS]
    surfaces = [surface for surface in surfaces if any(surface.seconds)]
    if not surfaces:
        raise DataFileError(
            path, "rows", f"no case has {LEAST_POINTS} points: replay a data set of a whole sweep, such as of `paper`"
        )
    return surfaces


def _surface(case: Case, known: Sequence[tuple[Row, Code]]) -> Surface:
    spreads = [row.spread for row, _ in known if row.seconds and row.spread]
    noise = median(spreads) if spreads else math.nan
    points, seconds = tuple(row.point for row, _ in known), tuple(row.seconds for row, _ in known)
    return Surface(case, points, seconds, noise, tuple(code for _, code in known))


def replay(
    surfaces: Sequence[Surface],
    strategies: Iterable[str],
    repeats: int,
    *,
    processes: int = 1,
    ahead: int = 1,
    show: Show = lambda _: None,
) -> list[Run]:
    """Search every case `repeats` times with every strategy; once with the exhaustive one, which has no seed.

    The same data give the same runs.

    Parameters
    ----------
    processes : int
        To spread the runs over.
    ahead : int
        Points that are asked for before the first of them is told.

    Raises
    ------
    BatchcholError
        If a strategy needs a package that is not installed.
    """
    together = tuple(range(len(surfaces)))
    tasks = [
        Task(numbers, strategy, repeat, ahead)
        # All cases of a repeat before the next: how long the rest will take shows early.
        for repeat in range(repeats)
        for strategy in strategies
        if strategy != "exhaustive" or repeat == 0
        for numbers in ([together] if strategy in TOGETHER else [(number,) for number in together])
    ]
    begin = time.monotonic()
    runs: list[Run] = []
    total = sum(len(task.numbers) for task in tasks)
    for found in in_processes(search, tuple(surfaces), tasks, processes):
        runs += found
        show(Progress.since(begin, len(runs), total, things="searches"))
    order = [*STRATEGIES, TAUGHT]
    return sorted(runs, key=lambda run: (order.index(run.strategy), run.number, run.repeat))


def search(surfaces: Sequence[Surface], task: Task) -> list[Run]:
    """Make the runs of a task: in every round each unfinished case asks for points."""
    mine = [surfaces[number] for number in task.numbers]
    # Not hash(): it differs from process to process.
    seed = zlib.crc32(f"{mine[0].case} {task.repeat}".encode())
    cases = [surface.points for surface in mine]
    if task.strategy == TAUGHT:
        others = [surface for surface in surfaces if surface.case.n != mine[0].case.n]
        known = (zip(other.points, other.seconds, other.codes, strict=True) for other in others)
        taught = [lesson for other in known for lesson in lessons_of(other)]
        codes = {point.key: code for each in mine for point, code in zip(each.points, each.codes, strict=True)}
        strategies = make("transfer", cases, seed, taught, codes)
    else:
        strategies = make(task.strategy, cases, seed)
    trails = [_Trail(surface, strategy, task) for surface, strategy in zip(mine, strategies, strict=True)]
    while active := [trail for trail in trails if not trail.done]:
        asked = [(trail, trail.ask()) for trail in active]
        for trail, points in asked:
            trail.tell(points)
    return [
        Run(number, task.strategy, task.repeat, tuple(trail.regret))
        for number, trail in zip(task.numbers, trails, strict=True)
    ]


class _Trail:
    """The search of one case, on its way."""

    def __init__(self, surface: Surface, strategy: Strategy, task: Task) -> None:
        self._strategy = strategy
        self._ahead = task.ahead
        self._seconds = dict(zip((point.key for point in surface.points), surface.seconds, strict=True))
        self._best = surface.best
        self._limit = len(surface.points)
        if task.strategy not in _QUICK:
            self._limit = math.ceil(FARTHEST * self._limit)
        # A real search does not know that it has the best: it would go on measuring, and teach the other cases.
        self._least = math.ceil(2 * SHARE * len(surface.points)) if task.strategy in TOGETHER else 1
        self.regret: list[float] = []

    @property
    def done(self) -> bool:
        count = len(self.regret)
        return count >= self._limit or (count >= self._least and self.regret[-1] <= 0)

    def ask(self) -> list[Point]:
        return [point for _ in range(self._ahead) if (point := self._strategy.ask()) is not None]

    def tell(self, points: Sequence[Point]) -> None:
        for point in points:
            took = self._seconds[point.key]
            self._strategy.tell(point, took)
            regret = math.inf if took is None else took / self._best - 1
            self.regret.append(min(regret, self.regret[-1] if self.regret else math.inf))


@dataclass(frozen=True)
class Line:
    """What some runs of a strategy needed.

    Attributes
    ----------
    strategy : str
    close : float
        How close to the best they had to come.
    runs : int
    median, high : float
        Measurements, half of the runs and nine out of ten of them needed no more; infinite if too few got there.
    median_share, high_share : float
        The same as shares of the points of the case.
    within, early : float
        The shares of the runs that got there within `SHARE` and `EARLY` of the points.
    """

    strategy: str
    close: float
    runs: int
    median: float
    high: float
    median_share: float
    high_share: float
    within: float
    early: float


def line(surfaces: Sequence[Surface], runs: Sequence[Run], close: float) -> Line:
    """Sum up runs of one strategy."""
    needed = np.array([run.needed(close) for run in runs])
    counts = np.array([len(surfaces[run.number].points) for run in runs])
    shares = needed / counts
    within, early = (float((needed <= np.ceil(share * counts - 1e-9)).mean()) for share in (SHARE, EARLY))
    middle, high = (_quantile(needed, part) for part in (0.5, 0.9))
    return Line(
        runs[0].strategy,
        close,
        len(runs),
        middle,
        high,
        _quantile(shares, 0.5),
        _quantile(shares, 0.9),
        within,
        early,
    )


def _quantile(values: Any, part: float) -> float:
    """One of the values, so that infinite ones need no arithmetic."""
    return float(np.quantile(values, part, method="inverted_cdf"))


def lines(surfaces: Sequence[Surface], runs: Sequence[Run]) -> list[Line]:
    """A line for each strategy and closeness, in the order of the runs."""
    names = dict.fromkeys(run.strategy for run in runs)
    return [line(surfaces, [run for run in runs if run.strategy == name], close) for name in names for close in CLOSE]
