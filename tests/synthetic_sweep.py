"""A data set that nobody measured: the points of a space with times by a plausible formula, for tests and timing.

python -m tests.synthetic_sweep FILE.parquet [POINTS]
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchchol.measure import parquet
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.tune.expand import Machine, expand
from batchchol.tune.space import load_space

COPY, PEAK = 4e12, 60e12
ABOUT = {
    "space": "paper",
    "recipe": "wishart",
    "device": "made up",
    "gpu": "made up",
    "driver": "0",
    "toolkit": "0",
    "copy_bytes_per_second": COPY,
    "peak_flops_per_second": PEAK,
    "version": "0",
    "commit": "",
    "date": "2026-01-01T00:00:00+00:00",
}


def points(count: int | None = None, space: str = "paper", seed: int = 1, **narrow: Sequence[object]) -> list[Point]:
    """Points of a space on a GPU, a random selection of them if a count is given."""
    every = expand(load_space(space), Machine.cuda(), **narrow).points
    if count is None or count >= len(every):
        return every
    return random.Random(seed).sample(every, count)


def seconds(point: Point) -> float:
    """Memory that is read again once a triangle is larger than the registers, and a price for every choice."""
    n, chosen = point.spec.problem.n, point.spec.to_dict()["schedule"]
    nb, looking, unroll = min(chosen.get("nb", 8), n), chosen.get("looking", "left"), chosen.get("unroll", "tiles")
    tiles = math.ceil(n / nb)
    again = 1.0 if unroll == "full" and n <= 20 else 1 + 0.35 * (tiles - 1) * (1 if nb < 8 else 1.3)
    again *= {"right": 1.4, "left": 1.1, "top": 1.0}[looking] if tiles > 1 else 1.0
    spills = 1 + max(0, n - 20) / 4 if unroll == "full" else 1.0
    layout = 1.15 if point.chunk is None else 1 + 0.05 * math.log2(point.chunk / 32)
    divisions = 1.0 if point.spec.problem.math == "fast" else 1 + 1.5 / n
    moved = point.batch * 4 * n * (n + 1) / COPY
    return 3e-6 + moved * 1.1 * again * spills * layout * divisions


def row(point: Point, status: str = "correct", seed: int = 1) -> Row:
    """The point with three samples about the formula's time."""
    noise = random.Random(f"{point.key} {seed}")
    exact = seconds(point)
    about = ABOUT | {"registers": 32 + point.spec.problem.n, "spill_bytes": 0}
    columns: dict[str, Any] = {"calls": 1, "ratio": 0.2, "floor_seconds": 1e-6, "about": about}
    if status != "correct":
        return Row(point, status, **columns)
    return Row.timed(point, [exact * (1 + 0.01 * noise.random()) for _ in range(3)], **columns)


def write(path: Path, rows: Sequence[Row]) -> Path:
    """A data set as `tune --data` leaves it after a sweep."""
    path.write_bytes(parquet.encode(parquet.table([each.values() for each in rows])))
    return path


if __name__ == "__main__":
    chosen = points(int(sys.argv[2]) if len(sys.argv) > 2 else None)
    print(len(chosen), write(Path(sys.argv[1]), [row(point) for point in chosen]))
