"""What was measured of the choices in a table: how long they take, and what the next best would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import log

from batchchol.defaults.tables import Case, Entry, Evidence, Table
from batchchol.measure.row import Row
from batchchol.tune.choosing.winners import case_of, counts, finalists, for_any_chunk, grouped, latest, ns
from kernelgen import Schedule
from kernelgen.schedules import in_math


def with_evidence(table: Table, rows: Iterable[Row]) -> Table:
    """The table with what rows say of its entries; its choices stay.

    Entries of an operation and a dtype that no row is of stay as they are.

    Between two batches of an order an entry serves until the next one's schedule is faster, if both were measured at
    both batches: the times in between are taken to lie on a line in logarithms.
    """
    usable = latest(row for row in rows if counts(row) and row.spec.target == table.target)
    measured = {(row.spec.problem.op, row.spec.problem.dtype) for row in usable}
    cases = {
        case: _entries(entries, _cells(usable, case), case) if (case.op, case.dtype) in measured else entries
        for case, entries in table.cases.items()
    }
    return replace(table, cases=cases)


def _cells(rows: Iterable[Row], case: Case) -> dict[int, dict[int, list[Row]]]:
    """The rows that a case was chosen from, by order and batch; of another math where its own was not measured."""
    of_dtype = [row for row in rows if (row.spec.problem.dtype, row.spec.problem.op) == (case.dtype, case.op)]
    by_math = grouped(of_dtype, lambda row: row.spec.problem.math)
    found: dict[int, dict[int, list[Row]]] = {}
    for math in dict.fromkeys((case.math, *by_math)):
        own: dict[int, list[Row]] = {}
        for pool in reversed(_pools(by_math.get(math, []), case)):
            own |= grouped(pool, lambda row: row.spec.problem.n)
        for n, alike in own.items():
            found[n] = grouped(alike, lambda row: row.point.batch) | found.get(n, {})
    return found


def _pools(rows: Sequence[Row], case: Case) -> list[list[Row]]:
    """The rows of the case's own place; where an order has none, those for any chunk."""
    placed = [row for row in rows if replace(case_of(row.point), dtype=case.dtype, math=case.math) == case]
    return [placed, for_any_chunk(rows)] if case.layout == "chunked" else [placed]


def _entries(entries: Sequence[Entry], cells: Mapping[int, Mapping[int, list[Row]]], case: Case) -> tuple[Entry, ...]:
    made: list[Entry] = []
    for n, group in groupby(entries, lambda entry: entry.n):
        row, measured = list(group), cells.get(n, {})
        untils = [_crossing(entry, other, measured, case.math) for entry, other in pairwise(row)]
        for entry, until in zip(row, [*untils, None], strict=True):
            batches = sorted(measured) if entry.batch is None else [entry.batch]
            found = (_evidence(entry.schedule, measured.get(batch, ()), case) for batch in batches)
            made.append(replace(entry, until=until, evidence=tuple(each for each in found if each is not None)))
    return tuple(made)


def _evidence(schedule: Schedule, rows: Sequence[Row], case: Case) -> Evidence | None:
    chosen = _of(schedule, rows, case.math)
    if chosen is None:
        return None
    rivals = [row for row in finalists(rows) if row.spec.schedule != chosen.spec.schedule]
    best = min(rivals, key=lambda row: row.median_seconds, default=None)
    batch, measured = chosen.point.batch, case_of(chosen.point)
    return Evidence(
        batch,
        ns(chosen.median_seconds, batch),
        None if best is None else in_math(best.spec.schedule, best.spec.problem.math, case.math),
        None if best is None else ns(best.median_seconds, batch),
        None if measured.math == case.math else measured.math,
        None if measured.chunk == case.chunk else measured.chunk,
    )


def _of(schedule: Schedule, rows: Sequence[Row], math: str) -> Row | None:
    """The measurement of a schedule that a case of a math names, whatever the math that it was measured in."""
    same = (each for each in rows if in_math(each.spec.schedule, each.spec.problem.math, math) == schedule)
    return next(same, None)


def _crossing(entry: Entry, following: Entry, measured: Mapping[int, Sequence[Row]], math: str) -> int | None:
    """The largest batch for which an entry's schedule is faster than the next one's; None if that is not known."""
    if entry.batch is None or following.batch is None or entry.schedule == following.schedule:
        return None
    first, last = measured.get(entry.batch, ()), measured.get(following.batch, ())
    pairs = [(_of(entry.schedule, rows, math), _of(following.schedule, rows, math)) for rows in (first, last)]
    logs = [log(theirs.median_seconds / own.median_seconds) for own, theirs in pairs if own and theirs]
    if len(logs) < 2 or max(logs[0], 0) + max(-logs[1], 0) <= 0:
        return None
    before, after = max(logs[0], 0.0), max(-logs[1], 0.0)
    crossing = int(entry.batch * (following.batch / entry.batch) ** (before / (before + after)))
    return min(max(crossing, entry.batch), following.batch - 1)
