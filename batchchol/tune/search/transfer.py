"""What a search can learn from measurements that are none of its own: of other orders, or on other devices."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchchol.measure.dataset import key_of_row
from batchchol.measure.point import Point
from batchchol.measure.row import rows_of
from batchchol.tune.search.cases import case_of
from batchchol.tune.search.encoding import Numbers
from batchchol.tune.winners import grouped
from kernelgen import TARGETS


@dataclass(frozen=True)
class Lesson:
    """What is known of a point: how much longer it took than the best of its case, as a logarithm."""

    point: Point
    log: float


def lessons(rows: Iterable[Mapping[str, Any]], gpu: bool, without: Collection[str] = ()) -> list[Lesson]:
    """What the rows of a data set teach a search on a GPU, or on a CPU.

    Parameters
    ----------
    rows : iterable of mappings
        As `dataset.read_rows` returns them, of one device.
    without : collection of str
        Keys of rows that the search knows anyway.
    """
    known = rows_of(row for row in rows if key_of_row(row) not in without)
    cases = grouped((row for row in known if TARGETS[row.spec.target].gpu == gpu), lambda row: case_of(row.point))
    return [lesson for case in cases.values() for lesson in lessons_of((row.point, row.seconds) for row in case)]


def lessons_of(case: Iterable[tuple[Point, float | None]]) -> list[Lesson]:
    """What a case teaches: its points, and what they took in seconds, or None where there is no number."""
    known = list(case)
    logs = relative(np.array([math.inf if took is None else math.log(took) for _, took in known]))
    return [Lesson(point, float(log)) for (point, _), log in zip(known, logs, strict=True)]


def relative(logs: Numbers) -> Numbers:
    """How much more each is than the least of a case; what failed, infinite, is e times slower than the slowest."""
    good = np.isfinite(logs)
    if not good.any():
        return np.ones(len(logs))
    return np.asarray(np.where(good, logs, logs[good].max() + 1.0) - logs[good].min())
