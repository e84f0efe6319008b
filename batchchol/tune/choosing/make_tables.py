"""From measured points to a table of defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from math import inf, log2
from statistics import geometric_mean, median
from typing import TypeVar

from batchchol.defaults.tables import REACH_OF_ORDERS, Case, Entry, Placement, Table
from batchchol.errors import BatchcholError
from batchchol.measure.row import Row
from batchchol.tune.choosing.evidence import with_evidence
from batchchol.tune.choosing.winners import (
    MARGIN,
    Cell,
    case_of,
    cell_of,
    counts,
    fastest,
    for_any_chunk,
    grouped,
    latest,
    of_last_device,
)
from kernelgen import TARGETS, Layout, Schedule
from kernelgen.operations import OPERATIONS
from kernelgen.problem import MATHS
from kernelgen.schedules import in_math
from kernelgen.targets import ELEMENT_BYTES

_Any = TypeVar("_Any")
# A chunk replaces that of the order before where it is this much faster: a batch has to live with its layout, and a
# table has few of them, so it follows them more closely than schedules. One run differs from the next by as much.
_LAYOUT_MARGIN = 0.01
# What spills no register is chosen where it takes at most this much longer.
SPILL_MARGIN = 0.06


def table(
    rows: Iterable[Row],
    name: str,
    *,
    measured: Mapping[str, str] | None = None,
    copy_bytes_per_second: float | None = None,
) -> Table:
    """The table of defaults that the rows of one target make, whatever their families, batches and maths.

    The fastest schedule of each case, order and batch is chosen, unless what serves the order or the batch before it
    is within the margin of noise of it: then that is kept, so that the table is short and stable.

    Parameters
    ----------
    rows : iterable of Row
        Of one target. Only correct ones count; on a GPU those of launches in a queue, and the last of each spec. Of
        several devices' that of the last one in each case, order and batch.
    name : str
        The architecture: a GPU's, such as "sm_90", or the name of a CPU's target.
    measured : mapping, optional
        For each dtype where and when.
    copy_bytes_per_second : float, optional
        What a copy on the device reaches, bytes read plus bytes written. With it the table also says where canonical
        arrays are best factored as they are: what packing them and unpacking the factors takes is counted at that
        rate, and each as a launch at the floor.

    Raises
    ------
    BatchcholError
        If there is nothing to choose from, or the rows are of several targets.
    """
    usable = latest(of_last_device(row for row in rows if counts(row)))
    targets = {row.spec.target for row in usable}
    if len(targets) != 1:
        got = ", ".join(sorted(targets)) or "none"
        raise BatchcholError(f"points: got correct ones of {got}, expected one target: a table is for one")
    # Batches are placed for their factorization by Cholesky; other operations take them as they are.
    placing = [row for row in usable if row.spec.problem.op == "potrf"]
    made = Table(
        name,
        targets.pop(),
        _cases(usable),
        tuple(_placements(placing, _layouts_of)),
        tuple(_placements(placing, partial(_arrays_of, copy_bytes_per_second))) if copy_bytes_per_second else (),
        dict(measured or {}),
    )
    return with_evidence(made, usable)


def tables_of(rows: Iterable[Row], arch: str | None = None) -> list[Table]:
    """The tables that rows make: one for each CPU target among them, one for a GPU's.

    Parameters
    ----------
    rows : iterable of Row
        Those of a GPU are of one architecture.
    arch : str, optional
        Which that is; needed if there are any.

    Raises
    ------
    BatchcholError
        If it is not given.
    """
    tables = []
    for target, own in grouped(rows, lambda row: row.spec.target).items():
        gpu = TARGETS[target].gpu
        if gpu and arch is None:
            raise BatchcholError(
                f"--arch: not given, say on which architecture the points of {target!r} were measured"
            )
        copies = [float(copy) for row in own if (copy := row.about.get("copy_bytes_per_second"))]
        copy = median(copies) if copies and gpu else None
        name = arch if gpu and arch else target
        tables.append(table(own, name, measured=_where(own), copy_bytes_per_second=copy))
    return tables


def period(days: Iterable[str]) -> str:
    """Days, such as "2026-11-21", in short: the only one, or the first and the last."""
    ordered = sorted(days)
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1])))


def _where(rows: Iterable[Row]) -> dict[str, str]:
    """For each dtype the device, and from when to when it was measured."""
    said = {}
    for dtype, own in _of_dtypes(rows):
        places = grouped(own, lambda row: f"{row.about['device']}, {row.toolkit}")
        said[dtype] = "; ".join(f"{place}, {period(row.day for row in found)}" for place, found in places.items())
    return said


def _of_dtypes(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    return sorted(grouped(rows, lambda row: row.spec.problem.dtype).items())


def _of_maths(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each class of accuracy that was measured, the default one first."""
    found = grouped(rows, lambda row: row.spec.problem.math)
    return {math: found[math] for math in MATHS if math in found}


def _cases(rows: Sequence[Row]) -> dict[Case, tuple[Entry, ...]]:
    """The entries of every case; a chunk whose entries are those for any chunk needs none of its own."""
    cases: dict[Case, tuple[Entry, ...]] = {}
    for dtype, own in _of_dtypes(rows):
        for place in _places(own):
            alike = [row for row in own if row.spec.problem.op == place.op]
            reach = REACH_OF_ORDERS if OPERATIONS[place.op].general else inf
            for math, cells in _by_math(alike, place).items():
                anywhere = Case(dtype, math, place.layout, op=place.op)
                entries = tuple(Entry(n, batch, schedule) for n, batch, schedule in _merged(cells, reach))
                if entries != cases.get(anywhere):
                    cases[replace(place, dtype=dtype, math=math)] = entries
    return cases


def _places(rows: Sequence[Row]) -> list[Case]:
    """The cases that were measured, without dtype and math: those for any chunk before those of one."""
    found = {_place(row) for row in rows}
    found |= {replace(place, chunk=None) for place in found}
    return sorted(found, key=_rank)


def _rank(place: Case) -> tuple[bool, str, int, str, str]:
    return place.layout != "chunked", place.layout, place.chunk or 0, str(place.order), place.op


def _place(row: Row) -> Case:
    return replace(case_of(row.point), dtype="", math="")


def _by_math(rows: Sequence[Row], place: Case) -> dict[str, dict[Cell, Schedule]]:
    """The schedules of a place for each math that was measured; what one lacks is taken from the other."""
    chosen = {math: cells for math, own in _of_maths(rows).items() if (cells := _schedules(own, place))}
    for math, other in permutations(chosen, 2):
        for cell, schedule in chosen[other].items():
            chosen[math].setdefault(cell, in_math(schedule, other, math))
    return chosen


def _schedules(rows: Sequence[Row], place: Case) -> dict[Cell, Schedule]:
    """The schedules of a place; at orders that were not measured on its chunk, those for any chunk."""
    own = _settled(row for row in rows if _place(row) == place)
    if place.layout != "chunked":
        return own
    anywhere = _settled(for_any_chunk(rows))
    if place.chunk is None:
        return anywhere
    orders = {n for n, _ in own}
    return own | {cell: schedule for cell, schedule in anywhere.items() if cell[0] not in orders}


def _settled(rows: Iterable[Row]) -> dict[Cell, Schedule]:
    """The winner of each order and batch, or what serves the one before if that is within the margin of it.

    What spills registers wins where nothing else is within its own, wider margin of it. What won at a smaller batch
    and was not measured at a larger one stays the winner where it took less for a matrix: a matrix of more takes no
    longer.
    """
    chosen: dict[Cell, Schedule] = {}
    found = grouped(rows, cell_of)
    for cell, rivals in sorted(found.items()):
        winner = fastest(_kept_in_registers(rivals))
        near_enough = winner.median_seconds * (1 + MARGIN)
        near = [row for row in rivals if row.median_seconds <= near_enough]
        near = [row for row in near if not row.about.get("spill_bytes")] or near
        good = {row.spec.schedule for row in near}
        good |= {row.spec.schedule for row in _untried(found, cell) if _each(row) <= _each(winner)}
        kept = [schedule for schedule in _before(chosen, cell) if schedule in good]
        chosen[cell] = kept[0] if kept else winner.spec.schedule
    return chosen


def _kept_in_registers(rivals: Sequence[Row]) -> Sequence[Row]:
    """Those that spill none, if one is near enough to the fastest of all."""
    most = fastest(rivals).median_seconds * (1 + SPILL_MARGIN)
    kept = [row for row in rivals if not row.about.get("spill_bytes")]
    return kept if any(row.median_seconds <= most for row in kept) else rivals


def _untried(found: Mapping[Cell, Sequence[Row]], cell: Cell) -> list[Row]:
    """Rows of the same order at smaller batches whose schedules were not measured at this one."""
    tried = {row.spec.schedule for row in found[cell]}
    smaller = [rivals for (n, batch), rivals in found.items() if n == cell[0] and (batch or 0) < (cell[1] or 0)]
    return [row for rivals in smaller for row in rivals if row.spec.schedule not in tried]


def _each(row: Row) -> float:
    """Seconds of a matrix."""
    return row.median_seconds / row.point.batch


def _before(chosen: Mapping[Cell, Schedule], cell: Cell) -> list[Schedule]:
    """What was chosen for the order before, at the batch nearest to this one, and for the batch before."""
    n, batch = cell
    smaller = max((order for order, _ in chosen if order < n), default=None)
    row = [size for order, size in chosen if order == smaller]
    columns = [size for order, size in chosen if order == n and size < batch]
    cells = [(smaller, min(row, key=lambda size: abs(log2(size / batch))))] if smaller is not None else []
    return [chosen[key] for key in [*cells, *((n, size) for size in columns[-1:])]]


def _merged(cells: Mapping[Cell, _Any], reach: float = inf) -> list[tuple[int, int | None, _Any]]:
    """The cells as (n, batch, what): a batch of None serves all; an order served like the next is left out.

    One serves orders of which its own is at most `reach` times as large.
    """
    kept: dict[int, list[tuple[int | None, _Any]]] = {}
    for n, found in reversed(grouped(sorted(cells), lambda cell: cell[0]).items()):
        sizes = [None] if all(cells[cell] == cells[found[0]] for cell in found) else [batch for _, batch in found]
        row = [(batch, cells[found[0] if batch is None else (n, batch)]) for batch in sizes]
        following = min(kept, default=None)
        if following is None or row != kept[following] or following > reach * n:
            kept[n] = row
    return [(n, batch, what) for n in sorted(kept) for batch, what in kept[n]]


def _placements(
    rows: Sequence[Row], chosen: Callable[[list[Row], str | None], dict[Cell, Layout]]
) -> Iterator[Placement]:
    """The chosen layouts of each dtype: those for all maths, and those of each math that has its own."""
    for dtype, own in _of_dtypes(rows):
        usual = _merged(chosen(own, None))
        yield from (Placement(dtype, *cell) for cell in usual)
        for math in MATHS:
            cells = _merged(chosen(own, math))
            if cells != usual:
                yield from (Placement(dtype, *cell, math) for cell in cells)


def _layouts_of(rows: Iterable[Row], math: str | None) -> dict[Cell, Layout]:
    """The best chunk of each order for the smallest batch that was measured, and for the largest.

    That of the smallest serves up to 1.4 times as many, the nearest by ratio to it and twice as many: on an H200 the
    largest one's was the faster for these already in 34 of 50 cases (datasets/sweeps/few_h200.csv).
    """
    own = [row for row in rows if row.spec.layout == "chunked" and math in (None, row.spec.problem.math)]
    cells = grouped(own, cell_of)
    least, most = ({n: (n, batch) for n, batch in sorted(cells, reverse=turn)} for turn in (True, False))
    many = _chunks([(cell, cells[cell]) for cell in sorted(most.values())])
    few = _chunks([(cell, cells[cell]) for cell in sorted(set(least.values()) - set(most.values()))])
    chosen: dict[Cell, Layout] = {}
    for n in few.keys() | many.keys():
        size = least[n][1]
        chosen[n, size] = _serving(few if least[n] != most[n] else many, n)
        chosen[n, 2 * size] = _serving(many, n)
    return chosen


def _chunks(cells: Sequence[tuple[Cell, list[Row]]]) -> dict[int, Layout]:
    """The best chunk of each order's only cell, in all maths, or the one of the order before that is as good."""
    chunks: dict[int, Layout] = {}
    for (n, _), rivals in _no_slower_than_larger(cells):
        times = _times_of_the_best(rivals)
        before = next(reversed(chunks.values()), None)
        fastest = min(times, key=lambda chunk: times[chunk])
        if before is not None and times.get(before.chunk, float("inf")) <= times[fastest] * (1 + _LAYOUT_MARGIN):
            fastest = before.chunk
        if fastest is not None:
            chunks[n] = Layout.chunked(fastest)
    return chunks


def _serving(chunks: Mapping[int, Layout], n: int) -> Layout:
    """What serves an order: its own entry, the next larger one's, or the last."""
    return chunks[min((order for order in chunks if order >= n), default=max(chunks))]


def _times_of_the_best(rows: Sequence[Row]) -> dict[int | None, float]:
    """How much longer each chunk takes than the best one, in the geometric mean of the maths that all have.

    When a batch is packed it is not known in which math it will be factored.
    """
    by_math = [_seconds_by_chunk(own) for own in _of_maths(rows).values()]
    common = set.intersection(*map(set, by_math)) or set(by_math[0])
    relative = {
        chunk: [seconds[chunk] / min(seconds.values()) for seconds in by_math if chunk in seconds] for chunk in common
    }
    return {chunk: geometric_mean(times) for chunk, times in sorted(relative.items(), key=lambda item: item[0] or 0)}


def _no_slower_than_larger(cells: Sequence[tuple[Cell, list[Row]]]) -> list[tuple[Cell, list[Row]]]:
    """Leave out orders that a larger one serves: nothing as fast was measured there, nor, in every math, anything on
    the larger one's best chunk.
    """
    maths = {row.spec.problem.math for _, rivals in cells for row in rivals}
    kept: list[tuple[Cell, list[Row]]] = []
    least, chunk = float("inf"), None
    for (n, batch), rivals in reversed(cells):
        winner = fastest(rivals)
        each = winner.median_seconds / batch
        if each <= least or {row.spec.problem.math for row in rivals if row.point.chunk == chunk} == maths:
            kept.append(((n, batch), rivals))
        if each < least:
            least, chunk = each, winner.point.chunk
    return kept[::-1]


def _arrays_of(copy_bytes_per_second: float, rows: Sequence[Row], math: str | None) -> dict[Cell, Layout]:
    """Where canonical arrays in rows are best factored as they are, and where in chunks, copies included.

    In a math, by default the first, or in another one at orders and batches where that was not measured.
    """
    cells: dict[Cell, Layout] = {}
    for (n, batch), rivals in grouped(_of_one_math(rows, math or MATHS[0]), cell_of).items():
        direct = [row for row in rivals if _place(row).order == "row"]
        packed = _seconds_by_chunk([row for row in rivals if row.spec.layout == "chunked"])
        if not direct or not packed:
            continue
        chunk = min(packed, key=lambda chunk: packed[chunk])
        floors = [row.floor_seconds for row in rivals if row.floor_seconds >= 0]
        dtype, floor = rivals[0].spec.problem.dtype, min(floors, default=0.0)
        through = packed_seconds(packed[chunk], n, dtype, batch, copy_bytes_per_second, floor)
        as_they_are = fastest(direct).median_seconds <= through * (1 + MARGIN)
        cells[n, batch] = Layout.canonical() if as_they_are or chunk is None else Layout.chunked(chunk)
    return cells


def packed_seconds(
    seconds: float, n: int, dtype: str, batch: int, copy_bytes_per_second: float, floor_seconds: float
) -> float:
    """Seconds for arrays (batch, n, n) that are packed, factored in `seconds`, and unpacked."""
    # Whole matrices are read and written, twice.
    copied = 4 * n * n * ELEMENT_BYTES[dtype] * batch / copy_bytes_per_second
    return seconds + copied + 2 * floor_seconds


def _of_one_math(rows: Iterable[Row], math: str) -> list[Row]:
    """At each order and batch the rows of one class of accuracy, this one where it was measured."""
    cells = (_of_maths(found) for found in grouped(rows, cell_of).values())
    return [row for found in cells for row in found.get(math) or next(iter(found.values()))]


def _seconds_by_chunk(rows: Iterable[Row]) -> dict[int | None, float]:
    """The fastest kernel's seconds on each chunk."""
    by_chunk = grouped(rows, lambda row: row.point.chunk)
    return {chunk: fastest(found).median_seconds for chunk, found in by_chunk.items()}
