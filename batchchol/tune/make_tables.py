"""From measured points to a table of defaults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from math import log2
from statistics import geometric_mean, median
from typing import TypeVar

from batchchol.defaults.tables import Case, Entry, Placement, Table
from batchchol.errors import BatchcholError
from batchchol.tune.cells import Cell, by_cell, case_of, counts, fastest, for_any_chunk, latest
from batchchol.tune.evidence import with_evidence
from batchchol.tune.tuning import MARGIN, PERIOD, Point, Points, period
from kernelgen import TARGETS, Layout, Schedule
from kernelgen.axes import MATHS
from kernelgen.schedules import has_math, in_other_math
from kernelgen.targets import ELEMENT_BYTES

_Any = TypeVar("_Any")
# A chunk replaces that of the order before where it is this much faster: a batch has to live with its layout, and a
# table has few of them, so it follows them more closely than schedules. One run differs from the next by as much.
_LAYOUT_MARGIN = 0.01


def table(
    points: Iterable[Point],
    name: str,
    *,
    measured: Mapping[str, str] | None = None,
    copy_bytes_per_second: float | None = None,
) -> Table:
    """The table of defaults that the points of one target make, whatever their families, batches and maths.

    The fastest schedule of each case, order and batch is chosen, but for one that is within the margin of noise of
    what serves the order or the batch before it: then that is kept, so that the table is short and stable.

    Parameters
    ----------
    points : iterable of Point
        Of one target. Only correct ones count; on a GPU those of launches in a queue, and the last of each spec.
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
        If there is nothing to choose from, or the points are of several targets.
    """
    usable = latest(point for point in points if counts(point))
    targets = {point.spec.target for point in usable}
    if len(targets) != 1:
        got = ", ".join(sorted(targets)) or "none"
        raise BatchcholError(f"points: got correct ones of {got}, expected one target: a table has no more")
    made = Table(
        name,
        targets.pop(),
        _cases(usable),
        tuple(_layouts(usable)),
        tuple(_arrays(usable, copy_bytes_per_second)) if copy_bytes_per_second else (),
        dict(measured or {}),
    )
    return with_evidence(made, usable)


def tables_of(sources: Iterable[Points], arch: str | None = None) -> list[Table]:
    """The tables that files of points make together: one for each CPU target among them, one for a GPU's.

    Parameters
    ----------
    sources : iterable of Points
        Their GPU points are of one architecture.
    arch : str, optional
        Which that is; needed if there are any.

    Raises
    ------
    BatchcholError
        If it is not said.
    """
    known = list(sources)
    by_target: dict[str, list[Point]] = defaultdict(list)
    for source in known:
        for point in source.points:
            by_target[point.spec.target].append(point)
    if arch is None and (gpu := [target for target in by_target if TARGETS[target].gpu]):
        raise BatchcholError(f"--arch: not given, say on which architecture the points of {gpu[0]!r} were measured")
    copies = [source.copy_bytes_per_second for source in known if source.copy_bytes_per_second]
    return [
        table(
            points,
            arch if arch is not None and TARGETS[target].gpu else target,
            measured=_where(known, target),
            copy_bytes_per_second=median(copies) if copies and TARGETS[target].gpu else None,
        )
        for target, points in by_target.items()
    ]


def _where(sources: Iterable[Points], target: str) -> dict[str, str]:
    """For each dtype on what it was measured, and from when to when."""
    days: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for source in sources:
        for dtype in {p.spec.problem.dtype for p in source.points if p.spec.target == target}:
            days[dtype][f"{source.machine}, {source.toolkit}"] += source.date.split(PERIOD)
    return {
        dtype: "; ".join(f"{place}, {period(found)}" for place, found in places.items())
        for dtype, places in sorted(days.items())
    }


def _cases(points: Sequence[Point]) -> dict[Case, tuple[Entry, ...]]:
    """The entries of every case; a chunk whose entries are those for any chunk needs none of its own."""
    cases: dict[Case, tuple[Entry, ...]] = {}
    for dtype in sorted({point.spec.problem.dtype for point in points}):
        own = [point for point in points if point.spec.problem.dtype == dtype]
        for place in _places(own):
            for math, cells in _by_math(own, place).items():
                anywhere = Case(dtype, math, place.layout)
                entries = tuple(Entry(n, batch, schedule) for n, batch, schedule in _merged(cells))
                if entries != cases.get(anywhere):
                    cases[replace(place, dtype=dtype, math=math)] = entries
    return cases


def _places(points: Sequence[Point]) -> list[Case]:
    """The cases that were measured, but for dtype and math: those for any chunk before those of one."""
    found = {_place(point) for point in points}
    found |= {replace(place, chunk=None) for place in found}
    return sorted(
        found, key=lambda place: (place.layout != "chunked", place.layout, place.chunk or 0, str(place.order))
    )


def _place(point: Point) -> Case:
    return replace(case_of(point.spec, point.chunk), dtype="", math="")


def _by_math(points: Sequence[Point], place: Case) -> dict[str, dict[Cell, Schedule]]:
    """The schedules of a place for each math that was measured; what one lacks is the other's."""
    chosen = {
        math: cells
        for math in MATHS
        if (cells := _schedules([point for point in points if point.spec.problem.math == math], place))
    }
    for math, other in permutations(chosen, 2):
        for cell, schedule in chosen[other].items():
            if has_math(schedule, math):
                chosen[math].setdefault(cell, in_other_math(schedule))
    return chosen


def _schedules(points: Sequence[Point], place: Case) -> dict[Cell, Schedule]:
    """The schedules of a place; at orders that were not measured on its chunk, those for any chunk."""
    if place.layout != "chunked":
        return _settled(point for point in points if _place(point) == place)
    anywhere = _settled(for_any_chunk(points))
    if place.chunk is None:
        return anywhere
    own = _settled(point for point in points if _place(point) == place)
    orders = {n for n, _ in own}
    return own | {cell: schedule for cell, schedule in anywhere.items() if cell[0] not in orders}


def _settled(points: Iterable[Point]) -> dict[Cell, Schedule]:
    """The winner of each order and batch, or what serves the one before if that is within the margin of it."""
    chosen: dict[Cell, Schedule] = {}
    for cell, rivals in sorted(by_cell(points).items()):
        winner = fastest(rivals)
        near_enough = winner.median_seconds * (1 + MARGIN)
        good = {point.spec.schedule for point in rivals if point.median_seconds <= near_enough}
        kept = [schedule for schedule in _before(chosen, cell) if schedule in good]
        chosen[cell] = kept[0] if kept else winner.spec.schedule
    return chosen


def _before(chosen: Mapping[Cell, Schedule], cell: Cell) -> list[Schedule]:
    """What was chosen for the order before, at the batch nearest to this one, and for the batch before."""
    n, batch = cell
    smaller = max((order for order, _ in chosen if order < n), default=None)
    row = [size for order, size in chosen if order == smaller]
    columns = [size for order, size in chosen if order == n and size < batch]
    cells = [(smaller, min(row, key=lambda size: abs(log2(size / batch))))] if smaller is not None else []
    return [chosen[key] for key in [*cells, *((n, size) for size in columns[-1:])]]


def _merged(cells: Mapping[Cell, _Any]) -> list[tuple[int, int | None, _Any]]:
    """The cells as (n, batch, what): a batch of None serves all, an order that is served as the next is left out."""
    by_order: dict[int, list[tuple[int | None, _Any]]] = defaultdict(list)
    for (n, batch), what in sorted(cells.items(), key=lambda item: item[0]):
        by_order[n].append((batch, what))
    for n, row in by_order.items():
        if all(what == row[0][1] for _, what in row):
            by_order[n] = [(None, row[0][1])]
    following = dict(pairwise(by_order))
    return [
        (n, batch, what)
        for n, row in by_order.items()
        if n not in following or row != by_order[following[n]]
        for batch, what in row
    ]


def _layouts(points: Sequence[Point]) -> Iterable[Placement]:
    """The best chunk of each order for the smallest batch that was measured, and for the largest.

    In all maths, and for each one whose best chunks are others in that alone.

    That of the smallest serves up to 1.4 times as many, the nearest by ratio to it and twice as many: on an H200 the
    largest one's was the faster for these already in 34 of 50 cases (datasets/few_h200.csv).
    """
    for dtype in sorted({point.spec.problem.dtype for point in points}):
        own = [point for point in points if point.spec.problem.dtype == dtype and point.spec.layout == "chunked"]
        usual = _merged(_layouts_of(own))
        yield from (Placement(dtype, *cell) for cell in usual)
        for math in _maths(own):
            cells = _merged(_layouts_of([point for point in own if point.spec.problem.math == math]))
            if cells != usual:
                yield from (Placement(dtype, *cell, math) for cell in cells)


def _maths(points: Iterable[Point]) -> list[str]:
    """Those that were measured, the default one first."""
    return sorted({point.spec.problem.math for point in points}, key=MATHS.index)


def _layouts_of(points: Sequence[Point]) -> dict[Cell, Layout]:
    """The layout of each order at the smallest batch, and at twice as many."""
    cells = by_cell(points)
    least, most = ({n: (n, batch) for n, batch in sorted(cells, reverse=turn)} for turn in (True, False))
    many = _chunks([(cell, cells[cell]) for cell in sorted(most.values())])
    few = _chunks([(cell, cells[cell]) for cell in sorted(set(least.values()) - set(most.values()))])
    chosen: dict[Cell, Layout] = {}
    for n in few.keys() | many.keys():
        size = least[n][1]
        chosen[n, size] = _serving(few if least[n] != most[n] else many, n)
        chosen[n, 2 * size] = _serving(many, n)
    return chosen


def _chunks(cells: Sequence[tuple[Cell, list[Point]]]) -> dict[int, Layout]:
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


def _times_of_the_best(points: Sequence[Point]) -> dict[int | None, float]:
    """How much longer than on the best chunk each one takes, in the geometric mean of the maths, if it has them all.

    Who packs a batch does not say in which it will be factored.
    """
    by_math = [
        _seconds_by_chunk([point for point in points if point.spec.problem.math == math]) for math in _maths(points)
    ]
    common = set.intersection(*map(set, by_math)) or set(by_math[0])
    relative = {
        chunk: [seconds[chunk] / min(seconds.values()) for seconds in by_math if chunk in seconds] for chunk in common
    }
    return {chunk: geometric_mean(times) for chunk, times in sorted(relative.items(), key=lambda item: item[0] or 0)}


def _no_slower_than_larger(cells: Sequence[tuple[Cell, list[Point]]]) -> list[tuple[Cell, list[Point]]]:
    """Without orders at which nothing as fast as at a larger one was measured, nor anything on the chunk that was the
    best there, in every math: what serves that one serves them.
    """
    maths = _maths([point for _, rivals in cells for point in rivals])
    kept: list[tuple[Cell, list[Point]]] = []
    least, chunk = float("inf"), None
    for (n, batch), rivals in reversed(cells):
        winner = fastest(rivals)
        each = winner.median_seconds / batch
        if each <= least or {point.spec.problem.math for point in rivals if point.chunk == chunk} == set(maths):
            kept.append(((n, batch), rivals))
        if each < least:
            least, chunk = each, winner.chunk
    return kept[::-1]


def _arrays(points: Sequence[Point], copy_bytes_per_second: float) -> Iterable[Placement]:
    """Where canonical arrays in rows are best factored as they are, and where in chunks, copies included: in the
    default math, and in another one if that makes a difference.
    """
    for dtype in sorted({point.spec.problem.dtype for point in points}):
        own = [point for point in points if point.spec.problem.dtype == dtype]
        usual = _merged(_arrays_of(own, MATHS[0], copy_bytes_per_second))
        yield from (Placement(dtype, *cell) for cell in usual)
        for math in MATHS[1:]:
            cells = _merged(_arrays_of(own, math, copy_bytes_per_second))
            if cells != usual:
                yield from (Placement(dtype, *cell, math) for cell in cells)


def _arrays_of(points: Sequence[Point], math: str, copy_bytes_per_second: float) -> dict[Cell, Layout]:
    """Where arrays of each order and batch are best factored in a math, or in the other one where that was not."""
    cells: dict[Cell, Layout] = {}
    for (n, batch), rivals in by_cell(_of_one_math(points, math)).items():
        direct = [point for point in rivals if _place(point).order == "row"]
        packed = _seconds_by_chunk([point for point in rivals if point.spec.layout == "chunked"])
        if not direct or not packed:
            continue
        chunk = min(packed, key=lambda chunk: packed[chunk])
        floors = [point.floor_seconds for point in rivals if point.floor_seconds >= 0]
        dtype, floor = rivals[0].spec.problem.dtype, min(floors, default=0.0)
        through = packed_seconds(packed[chunk], n, dtype, batch, copy_bytes_per_second, floor)
        as_they_are = fastest(direct).median_seconds <= through * (1 + MARGIN)
        cells[n, batch] = Layout.canonical() if as_they_are or chunk is None else Layout.chunked(chunk)
    return cells


def packed_seconds(
    seconds: float, n: int, dtype: str, batch: int, copy_bytes_per_second: float, floor_seconds: float
) -> float:
    """Seconds that arrays (batch, n, n) take which are packed, factored in so many seconds, and unpacked."""
    # Whole matrices are read and written, twice.
    copied = 4 * n * n * ELEMENT_BYTES[dtype] * batch / copy_bytes_per_second
    return seconds + copied + 2 * floor_seconds


def _of_one_math(points: Sequence[Point], math: str) -> list[Point]:
    """At each order and batch the points of one class of accuracy, this one where it was measured."""
    chosen: list[Point] = []
    for found in by_cell(points).values():
        first = min(_maths(found), key=lambda other: other != math)
        chosen += [point for point in found if point.spec.problem.math == first]
    return chosen


def _seconds_by_chunk(points: Iterable[Point]) -> dict[int | None, float]:
    """The fastest kernel's seconds on each chunk."""
    by_chunk: dict[int | None, list[Point]] = defaultdict(list)
    for point in points:
        by_chunk[point.chunk].append(point)
    return {chunk: fastest(found).median_seconds for chunk, found in by_chunk.items()}
