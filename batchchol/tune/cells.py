"""Measured points by what they are measurements of: the case, the order and the batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from batchchol.defaults.tables import Case
from batchchol.tune.tuning import FIRST_SAMPLES, Point
from kernelgen import TARGETS, KernelSpec

# Order and batch.
Cell = tuple[int, int]
Measured = dict[Cell, list[Point]]


def counts(point: Point) -> bool:
    """Whether choices are made of a point: a correct one, on a GPU of launches in a queue."""
    return point.status == "correct" and (not TARGETS[point.spec.target].gpu or point.protocol == "queued")


def latest(points: Iterable[Point]) -> list[Point]:
    """Of several measurements of the same, the last of those with the most samples."""
    kept: dict[tuple[object, ...], Point] = {}
    for point in points:
        same = (point.spec, point.chunk, point.batch, point.threads)
        if same not in kept or point.samples >= kept[same].samples:
            kept[same] = point
    return list(kept.values())


def case_of(spec: KernelSpec, chunk: int | None) -> Case:
    """The case that a kernel is of, on batches of that chunk; of the upper triangle the mirrored one of the lower."""
    flipped = {"row": "col", "col": "row"}[spec.order]
    order = (spec.order if spec.problem.uplo == "lower" else flipped) if spec.layout == "canonical" else None
    chunk = chunk if spec.layout == "chunked" else None
    return Case(spec.problem.dtype, spec.problem.math, spec.layout, chunk, order)


def by_cell(points: Iterable[Point]) -> Measured:
    """The points of each order and batch."""
    cells: Measured = defaultdict(list)
    for point in points:
        cells[point.spec.problem.n, point.batch].append(point)
    return cells


def for_any_chunk(points: Iterable[Point]) -> list[Point]:
    """The kernels that run on any chunk, each on the largest chunk of its order."""
    found = [point for point in points if point.spec.layout == "chunked" and point.spec.schedule.stride is None]
    largest: dict[int, int] = defaultdict(int)
    for point in found:
        largest[point.spec.problem.n] = max(largest[point.spec.problem.n], point.chunk or 0)
    return [point for point in found if (point.chunk or 0) == largest[point.spec.problem.n]]


def finalists(points: Sequence[Point]) -> list[Point]:
    """Those that were measured longer, if there are any."""
    return [point for point in points if point.samples > FIRST_SAMPLES] or list(points)


def fastest(points: Sequence[Point]) -> Point:
    """The fastest, of those that were measured longer if there are any."""
    return ranked(points)[0]


def ranked(points: Sequence[Point]) -> list[Point]:
    """The fastest first, those that were measured longer before the others."""
    return sorted(points, key=lambda point: (point.samples <= FIRST_SAMPLES, point.median_seconds))
