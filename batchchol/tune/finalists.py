"""What is measured again after a sweep: the best of each case, with the code that would be used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from batchchol.measure.point import Point
from batchchol.measure.row import point_of

_CASE = ("target", "n", "dtype", "uplo", "math", "layout", "order", "batch", "threads", "protocol")


def finalists(rows: Iterable[Mapping[str, Any]], count: int) -> list[Point]:
    """The `count` fastest points of each case that ran code for blocks of any size, with their specs' own code.

    A case is a problem, an accuracy class, a layout, a batch and a manner of measuring. Only points with the spec's
    own code say how fast the spec is where it is used.
    """
    cases: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["status"] == "correct" and row["any_block"]:
            cases[tuple(row[name] for name in _CASE)].append(row)
    best = (sorted(rivals, key=lambda row: row["median_seconds"])[:count] for rivals in cases.values())
    return [point_of(row).own for winners in best for row in winners]
