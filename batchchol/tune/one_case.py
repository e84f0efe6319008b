"""One order and batch tuned in under a minute: promising kernels first, the best of them against the current one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from batchchol.defaults.entries import Placed, Tuned
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.errors import BatchcholError
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row
from batchchol.parallel import available_threads
from batchchol.progress import Progress, Show
from batchchol.tune.choosing import least_energy
from batchchol.tune.choosing.contest import ROUNDS, Contest, Site, placements
from batchchol.tune.choosing.winners import FINAL_SAMPLES, FIRST_SAMPLES
from batchchol.tune.compile import build
from batchchol.tune.ranking import apart, candidates, current_layouts, variations
from kernelgen import Layout

SECONDS = 50.0
"""The default time limit of tuning a case."""

# How many kernels of a case are measured alternating with the current one, and how many have their variations tried.
_CHALLENGERS, _VARIED = 2, 2
# Shares of the time: kept for the variations of the best, and the most that the last measurements may take.
_VARIATIONS_SHARE, _FINAL_SHARE = 0.25, 0.4
# A compiler that takes this long is at straight-line code that is too long to be fast.
_COMPILE_SECONDS, _LEAST_SECONDS = 15.0, 2.0
_MIN_ROUNDS = 2


@dataclass(frozen=True)
class Outcome:
    """The result of tuning an order and a batch: entries and placements for the user's table, and what was tried.

    `interrupt` is what ended it early, to be raised again once the entries are kept.
    """

    entries: list[Tuned]
    placements: list[Placed]
    measured: int
    candidates: int
    seconds: float
    interrupt: KeyboardInterrupt | None = None


@dataclass
class _Search:
    """The rows of a search, and the time that it may take."""

    measurer: Measurer
    site: Site
    wanted: Request
    jobs: int
    show: Show
    total: int
    begin: float = field(default_factory=time.monotonic)
    deadline: float = 0.0
    rows: dict[Point, Row] = field(default_factory=dict)
    failed: int = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def measure(self, found: Sequence[Point], samples: int = FIRST_SAMPLES) -> None:
        """Compile and measure in rounds of as many kernels as there are compilers, until the time is over."""
        pending = [point for point in found if point not in self.rows]
        size = max(4, 2 * self.jobs)
        for start in range(0, len(pending), size):
            part = pending[start : start + size]
            left = self.deadline - self.elapsed
            if left <= 0:
                return
            limit = min(_COMPILE_SECONDS, max(left, _LEAST_SECONDS))
            built = build(part, self.site.arch, jobs=self.jobs, per_module=1, time_limit=limit)
            lost = {row.point: row for row in built.failed}
            for point in part:
                if point not in lost and self.elapsed > self.deadline:
                    return
                self._keep(lost.get(point) or self.measurer.measure(point, samples))

    def _keep(self, row: Row) -> None:
        self.rows[row.point] = row
        self.failed += row.status not in ("correct", "unsupported")
        self.show(Progress(len(self.rows), self.total, 0, self.failed, self.elapsed, None, "candidates"))

    def best(self, kind: str, chunk: int | None = None) -> list[Point]:
        """What was measured of a kind of layout, the fastest first; on one chunk, or on all."""
        found = [
            row
            for point, row in self.rows.items()
            if row.correct and point.spec.layout == kind and chunk in (None, point.chunk)
        ]
        return [row.point for row in sorted(found, key=lambda row: row.median_seconds)]


def tune_case(
    measurer: Measurer,
    site: Site,
    wanted: Request,
    kinds: Sequence[str],
    families: Sequence[str],
    *,
    seconds: float = SECONDS,
    objective: str = "time",
    jobs: int | None = None,
    show: Show = lambda _: None,
) -> Outcome:
    """Find the best schedules for an order and a batch: on arrays as they are, and on batches in chunks.

    The current schedules are measured first. What is promising follows (`ranking.candidates`), compiled in
    parallel ahead of each round, then variations of the best. The best of each layout and of the current chunk
    are measured alternating with what is used there now, which gives way only past a margin. After an interrupt
    nothing more is measured: what is not decided by then is decided by the rows so far, if they have the current one.

    With the `objective` "energy" the fastest of each layout are measured by what they use, at most
    `least_energy.MOST_FINALISTS` in all, after the search, which then has all of its time.

    Raises
    ------
    MachineFailure, BatchcholError
        If nothing can be measured.
    """
    begin = time.monotonic()
    current = current_layouts(wanted, kinds)
    usual = [site.point(default_choice(wanted.on(each)).spec, each.chunk, wanted.size) for each in current]
    found = candidates(wanted, kinds, families, site)
    everything = list(dict.fromkeys([*usual, *found]))
    search = _Search(measurer, site, wanted, jobs or available_threads(), show, len(everything), begin, seconds)
    search.measure(usual, FINAL_SAMPLES)
    known = [row for row in search.rows.values() if row.correct]
    entries, interrupt = list[Tuned](), None
    try:
        for entry in _decided(search, found, current, kinds, seconds, by_energy=objective == "energy"):
            entries.append(entry)
        if not entries:
            statuses = sorted({f"{row.status} {row.message}".strip() for row in search.rows.values()})
            raise BatchcholError(f"nothing could be measured: {'; '.join(statuses[:3])}")
    except KeyboardInterrupt as error:
        # The answer of its process is not waited for.
        measurer.close()
        interrupt = error
        done = {entry.case for entry in entries}
        entries += _by_rows(
            search, [each for each in _contests(search, current, kinds) if each.request.case not in done]
        )
    floor = max((row.floor_seconds for row in known if row.floor_seconds >= 0), default=0.0)
    placed = placements(entries, site, floor)
    return Outcome(entries, placed, len(search.rows), search.total, search.elapsed, interrupt)


def _decided(
    search: _Search,
    found: Sequence[Point],
    current: Sequence[Layout],
    kinds: Sequence[str],
    seconds: float,
    *,
    by_energy: bool,
) -> Iterator[Tuned]:
    """The entries that the contests decide, each as soon as it is, after the search that finds the challengers."""
    # Each layout is decided between its current schedule and the challengers.
    each_round = sum(row.wall_seconds for row in search.rows.values() if row.correct) * (1 + _CHALLENGERS) or 1.0
    rounds = max(_MIN_ROUNDS, min(ROUNDS, int(_FINAL_SHARE * seconds / each_round)))
    _explore(search, found, kinds, seconds - (0 if by_energy else min(rounds * each_round, _FINAL_SHARE * seconds)))
    contests = _contests(search, current, kinds, least_energy.MOST_FINALISTS if by_energy else _CHALLENGERS)
    share = least_energy.MOST_FINALISTS // max(len(contests), 1)
    for contest in contests:
        if by_energy:
            entry = least_energy.held(contest, search.measurer, search.site, share)
        else:
            entry = contest.held(search.measurer, search.site, rounds)
        if entry:
            yield entry


def _explore(search: _Search, found: Sequence[Point], kinds: Sequence[str], seconds: float) -> None:
    """Measure candidates, and variations of the best of them, for `seconds`."""
    search.deadline = seconds * (1 - _VARIATIONS_SHARE)
    search.measure(found)
    search.deadline = seconds
    better = [each for kind in kinds for each in apart(search.best(kind))[:_VARIED]]
    more = [each for each in variations(better, search.site) if each not in search.rows]
    search.total += len(more)
    search.measure(more)


def _by_rows(search: _Search, contests: Sequence[Contest]) -> list[Tuned]:
    """What the rows of the search decide: the contests whose current schedule is among them."""
    rows = {point: row for point, row in search.rows.items() if row.correct}
    entries = []
    for contest in contests:
        current, *others = contest.points(search.site)
        if current in rows:
            mine = [rows[point] for point in (current, *others) if point in rows]
            entries += [entry for entry in [contest.decided(mine, search.site)] if entry]
    return entries


def _contests(
    search: _Search, current: Sequence[Layout], kinds: Sequence[str], challengers: int = _CHALLENGERS
) -> list[Contest]:
    """The contests of the current layouts, and of the fastest chunk, each with at most `challengers` of them."""
    fastest = [Layout(kind, best[0].chunk, best[0].spec.order) for kind in kinds if (best := search.best(kind))]
    return [_contest(search, layout, challengers) for layout in dict.fromkeys([*current, *fastest])]


def _contest(search: _Search, layout: Layout, most: int) -> Contest:
    request = search.wanted.on(layout)
    incumbent = default_choice(request)
    found = [each for each in search.best(layout.kind, layout.chunk) if each.spec != incumbent.spec]
    challengers = tuple(each.spec for each in apart(found)[:most])
    return Contest(request, incumbent, challengers, len(search.rows), search.total)
