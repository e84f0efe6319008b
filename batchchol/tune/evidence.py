"""What was measured of the choices in a table: how long they take, and what the next best would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import log

from batchchol.defaults.tables import Case, Entry, Evidence, Table
from batchchol.tune.cells import by_cell, case_of, counts, finalists, for_any_chunk, latest
from batchchol.tune.tuning import Point
from kernelgen import Schedule
from kernelgen.schedules import has_math, in_other_math

_DIGITS = 4


def with_evidence(table: Table, points: Iterable[Point]) -> Table:
    """The table with what points say of its entries: what is chosen at their batches stays.

    Entries of a dtype that no point is of stay as they are.

    Between two batches of an order an entry serves until the next one's schedule is faster, if both were measured at
    both batches: the times in between are taken to lie on a line in logarithms.
    """
    usable = latest(point for point in points if counts(point) and point.spec.target == table.target)
    measured = {point.spec.problem.dtype for point in usable}
    cases = {
        case: _entries(entries, _Cells(usable, case), case) if case.dtype in measured else entries
        for case, entries in table.cases.items()
    }
    return replace(table, cases=cases)


class _Cells:
    """The points that a case was chosen from, by order and batch."""

    def __init__(self, points: Sequence[Point], case: Case) -> None:
        own = [point for point in points if point.spec.problem.dtype == case.dtype]
        self._case = case
        self._by_math = {
            math: [by_cell(cell) for cell in self._pools([p for p in own if p.spec.problem.math == math])]
            for math in dict.fromkeys((case.math, *(point.spec.problem.math for point in own)))
        }

    def _pools(self, points: Sequence[Point]) -> list[list[Point]]:
        """Those of the case's own place; where an order has none, those for any chunk."""
        case = self._case
        placed = [
            point
            for point in points
            if replace(case_of(point.spec, point.chunk), dtype=case.dtype, math=case.math) == case
        ]
        return [placed, for_any_chunk(points)] if case.layout == "chunked" else [placed]

    def of(self, n: int) -> Mapping[int, Sequence[Point]]:
        """The points of an order by their batches; of another math where its own was not measured there."""
        found: dict[int, Sequence[Point]] = {}
        for pools in self._by_math.values():
            rows = ({batch: points for (order, batch), points in pool.items() if order == n} for pool in pools)
            found = next((row for row in rows if row), {}) | found
        return found


def _entries(entries: Sequence[Entry], cells: _Cells, case: Case) -> tuple[Entry, ...]:
    made: list[Entry] = []
    for n, group in groupby(entries, lambda entry: entry.n):
        row, measured = list(group), cells.of(n)
        untils = [_crossing(entry, other, measured, case.math) for entry, other in pairwise(row)]
        for entry, until in zip(row, [*untils, None], strict=True):
            batches = sorted(measured) if entry.batch is None else [entry.batch]
            found = (_evidence(entry.schedule, measured.get(batch, ()), case) for batch in batches)
            made.append(replace(entry, until=until, evidence=tuple(each for each in found if each is not None)))
    return tuple(made)


def _evidence(schedule: Schedule, points: Sequence[Point], case: Case) -> Evidence | None:
    chosen = _of(schedule, points, case.math)
    if chosen is None:
        return None
    rivals = [
        point
        for point in finalists(points)
        if point.spec.schedule != chosen.spec.schedule and has_math(point.spec.schedule, case.math)
    ]
    best = min(rivals, key=lambda point: point.median_seconds, default=None)
    measured = case_of(chosen.spec, chosen.chunk)
    return Evidence(
        chosen.batch,
        _ns(chosen),
        None if best is None else _in_math(best, case.math),
        None if best is None else _ns(best),
        None if measured.math == case.math else measured.math,
        None if measured.chunk == case.chunk else measured.chunk,
    )


def _of(schedule: Schedule, points: Sequence[Point], math: str) -> Point | None:
    """The measurement of a schedule that a case of a math names, whatever the math that it was measured in."""
    alike = (each for each in points if has_math(each.spec.schedule, math))
    return next((each for each in alike if _in_math(each, math) == schedule), None)


def _in_math(point: Point, math: str) -> Schedule:
    schedule = point.spec.schedule
    return schedule if point.spec.problem.math == math else in_other_math(schedule)


def _crossing(entry: Entry, following: Entry, measured: Mapping[int, Sequence[Point]], math: str) -> int | None:
    """The largest batch that an entry's schedule is the faster one for; None if that is not known."""
    if entry.batch is None or following.batch is None or entry.schedule == following.schedule:
        return None
    first, last = measured.get(entry.batch, ()), measured.get(following.batch, ())
    pairs = [(_of(entry.schedule, points, math), _of(following.schedule, points, math)) for points in (first, last)]
    logs = [log(theirs.median_seconds / own.median_seconds) for own, theirs in pairs if own and theirs]
    if len(logs) < 2 or max(logs[0], 0) + max(-logs[1], 0) <= 0:
        return None
    before, after = max(logs[0], 0.0), max(-logs[1], 0.0)
    crossing = int(entry.batch * (following.batch / entry.batch) ** (before / (before + after)))
    return min(max(crossing, entry.batch), following.batch - 1)


def _ns(point: Point) -> float:
    return float(f"{point.median_seconds / point.batch * 1e9:.{_DIGITS}g}")
