"""The best kernels of earlier measurements, as part of a search space: they are measured again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from batchchol.measure.point import Point
from batchchol.tune import tuning
from batchchol.tune.cells import case_of, counts, latest, ranked


@dataclass(frozen=True)
class Best:
    """Of each case of some points the `count` fastest kernels; `changes` are values of fields of their schedules."""

    backends: tuple[str, ...]
    points: tuple[tuning.Point, ...]
    count: int
    changes: Mapping[str, tuple[Any, ...]]

    def narrowed(self, wanted: Callable[[tuning.Point], bool]) -> Best:
        """Those of the points that are wanted."""
        return replace(self, points=tuple(point for point in self.points if wanted(point)))

    def winners(self, target: str) -> list[tuning.Point]:
        """The fastest points of a target, of everything that a table of defaults tells apart.

        Kernels for any chunk are in no competition with those for one: a table has use for both.
        """
        rivals: dict[tuple[Any, ...], list[tuning.Point]] = defaultdict(list)
        for point in latest(point for point in self.points if counts(point) and point.spec.target == target):
            anywhere = point.spec.schedule.stride is None
            case = case_of(point.spec, point.chunk)
            rivals[case, anywhere, point.spec.problem.n, point.batch].append(point)
        return [point for found in rivals.values() for point in ranked(found)[: self.count]]


def value_of(point: Point | tuning.Point, name: str) -> Any:
    """What a point is of: its n, batch, dtype, math, family or layout."""
    if name == "batch":
        return point.batch
    for thing in (point.spec, point.spec.problem, point.spec.schedule):
        if hasattr(thing, name):
            return getattr(thing, name)
    raise ValueError(f"narrow: got {name!r}, which points do not have")
