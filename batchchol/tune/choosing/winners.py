"""The best of many rows: of each case, order and batch, of those that are measured again, and of a search space."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from batchchol.defaults.request import Request
from batchchol.defaults.tables import Case
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from kernelgen import TARGETS

# All candidates are measured briefly, the best of them again and longer.
FIRST_SAMPLES, FINAL_SAMPLES = 5, 25
MARGIN = 0.03
"""A schedule replaces one that serves the neighbouring orders only if it is this much faster."""

# Order and batch.
Cell = tuple[int, int]
_Any = TypeVar("_Any")
_Key = TypeVar("_Key", bound=Hashable)
_AGAIN = ("target", "n", "dtype", "uplo", "math", "layout", "order", "batch", "threads", "protocol")


def grouped(items: Iterable[_Any], key: Callable[[_Any], _Key]) -> dict[_Key, list[_Any]]:
    """The items of each key, in their order; keys in the order of their first items."""
    groups: dict[_Key, list[_Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def counts(row: Row) -> bool:
    """Whether a row counts for choices: it is correct, and on a GPU of queued launches."""
    return row.correct and (not TARGETS[row.spec.target].gpu or row.point.protocol == "queued")


def latest(rows: Iterable[Row]) -> list[Row]:
    """Of several measurements of the same, the last of those with the most samples."""
    same = grouped(rows, lambda row: (row.spec, row.point.chunk, row.point.batch, row.point.threads))
    return [max(reversed(found), key=lambda row: row.samples) for found in same.values()]


def of_last_device(rows: Iterable[Row]) -> list[Row]:
    """The rows of the device that was measured last in each case, order and batch: times of two are not compared."""
    found = list[Row]()
    for own in grouped(rows, lambda row: (case_of(row.point), cell_of(row))).values():
        last = max(own, key=lambda row: str(row.about["date"])).about["device"]
        found += [row for row in own if row.about["device"] == last]
    return found


def case_of(point: Point) -> Case:
    """The case of a point; for the upper triangle the mirrored case of the lower."""
    spec = point.spec
    return Request(spec.problem, spec.target, spec.layout, spec.order, point.chunk).case


def cell_of(row: Row) -> Cell:
    """The order and the batch of a row."""
    return row.spec.problem.n, row.point.batch


def for_any_chunk(rows: Iterable[Row]) -> list[Row]:
    """The kernels that run on any chunk, each on the largest chunk of its order."""
    found = [row for row in rows if row.spec.layout == "chunked" and row.spec.schedule.stride is None]
    orders = grouped(found, lambda row: row.spec.problem.n)
    largest = {n: max(row.point.chunk or 0 for row in alike) for n, alike in orders.items()}
    return [row for row in found if (row.point.chunk or 0) == largest[row.spec.problem.n]]


def finalists(rows: Sequence[Row]) -> list[Row]:
    """The rows that were measured longer, if there are any."""
    return [row for row in rows if row.samples > FIRST_SAMPLES] or list(rows)


def ranked(rows: Iterable[Row]) -> list[Row]:
    """The fastest first, those that were measured longer before the others."""
    return sorted(rows, key=lambda row: (row.samples <= FIRST_SAMPLES, row.median_seconds))


def fastest(rows: Iterable[Row]) -> Row:
    """The fastest, of those that were measured longer if there are any."""
    return ranked(rows)[0]


def surest(rows: Iterable[Row]) -> Row:
    """The fastest of those with the most samples."""
    return min(rows, key=lambda row: (-row.samples, row.median_seconds))


def rounded(value: float, digits: int = 4) -> float:
    """A number in as many digits as tables have."""
    return float(f"{value:.{digits}g}")


def ns(seconds: float, batch: int) -> float:
    """Nanoseconds of a matrix, of a call on `batch` of them, as tables have them."""
    return rounded(seconds / batch * 1e9)


def again(rows: Iterable[Mapping[str, Any]], count: int) -> list[Point]:
    """The `count` fastest points of each case that ran code for blocks of any size, with their specs' own code.

    A case is a problem, an accuracy class, a layout, a batch and a manner of measuring. Only points with the spec's
    own code say how fast the spec is where it is used.
    """
    shared = [row for row in rows if row["status"] == "correct" and row["any_block"]]
    cases = grouped(shared, lambda row: tuple(row[name] for name in _AGAIN))
    best = (sorted(rivals, key=lambda row: row["median_seconds"])[:count] for rivals in cases.values())
    return [Row.of(row).point.own for winners in best for row in winners]


@dataclass(frozen=True)
class Best:
    """Part of a search space: of each case of some rows the `count` fastest kernels, to be measured again.

    `changes` are values of fields of their schedules.
    """

    backends: tuple[str, ...]
    rows: tuple[Row, ...]
    count: int
    changes: Mapping[str, tuple[Any, ...]]

    def narrowed(self, wanted: Callable[[Point], bool]) -> Best:
        """The same of the rows whose points are wanted."""
        return replace(self, rows=tuple(row for row in self.rows if wanted(row.point)))

    def winners(self, target: str) -> list[Point]:
        """The fastest points of a target, of everything that a table of defaults tells apart.

        Kernels for any chunk do not compete with those for one chunk: a table has use for both.
        """
        known = latest(row for row in self.rows if counts(row) and row.spec.target == target)
        rivals = grouped(known, lambda row: (case_of(row.point), row.spec.schedule.stride is None, cell_of(row)))
        return [row.point for found in rivals.values() for row in ranked(found)[: self.count]]


def value_of(point: Point, name: str) -> Any:
    """What a point is of: its n, batch, dtype, math, family or layout."""
    if name == "batch":
        return point.batch
    for thing in (point.spec, point.spec.problem, point.spec.schedule):
        if hasattr(thing, name):
            return getattr(thing, name)
    raise ValueError(f"narrow: got {name!r}, which points do not have")
