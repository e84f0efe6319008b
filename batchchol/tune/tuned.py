"""A data set as the points that `batchchol.tune.make_tables` makes tables of defaults of."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchchol.errors import DataFileError
from batchchol.measure import dataset
from batchchol.measure.point import Point
from batchchol.measure.row import points_of
from batchchol.tune import tuning
from batchchol.tune.tuning import Points, period

_NUMBERS = ("median_seconds", "spread", "ratio", "floor_seconds", "compile_seconds")


def read_points(path: Path) -> Points:
    """The correct points of a data set, a folder or a file, that ran their specs' own code.

    Those of kernels that this version cannot build any more are left out, with a warning.

    Raises
    ------
    DataFileError
        If it cannot be read, or has none.
    """
    rows = [row for row in dataset.read(path).to_pylist() if row["status"] == "correct" and not row["any_block"]]
    if not rows:
        raise DataFileError(path, "reading", "has no correct measurement of a spec's own code: choose another one")
    last = rows[-1]
    toolkit = last["toolkit"] or last["compiler"].split("|")[0].strip()
    points = _points(path, rows)
    days = period(row["date"][:10] for row in rows)
    return Points(points, last["device"], toolkit, days, last["copy_bytes_per_second"])


def _points(path: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[tuning.Point, ...]:
    known = [_point(point, row) for point, row in points_of(rows)]
    if not known:
        raise DataFileError(path, "reading", "has no kernel that this version can build: measure again")
    if left_out := len(rows) - len(known):
        which = f"{left_out:,} of {len(rows):,} points are of kernels that this version cannot build"
        warnings.warn(f"{path}: {which}, and are left out", stacklevel=4)
    return tuple(known)


def _point(point: Point, row: Mapping[str, Any]) -> tuning.Point:
    numbers: dict[str, Any] = {name: float("nan") if row[name] is None else row[name] for name in _NUMBERS}
    return tuning.Point(
        spec=point.spec,
        chunk=point.chunk,
        batch=point.batch,
        threads=point.threads,
        protocol=point.protocol,
        status=row["status"],
        samples=row["samples"],
        code_bytes=row["code_bytes"] or 0,
        registers=row["registers"],
        spill_bytes=row["spill_bytes"],
        shared_bytes=row["shared_bytes"],
        **numbers,
    )
