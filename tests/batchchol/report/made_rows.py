"""Rows of sweeps and comparisons that tests of reports make up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchchol.compare.rows import Row as PeerRow
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.report import data as points
from kernelgen import KernelSpec, Problem, ThreadSchedule

from ... import synthetic_sweep

BATCH = 16384


def a_point(n: int, **choices: Any) -> Point:
    chunk = choices.pop("chunk", 32)
    batch, any_block = choices.pop("batch", BATCH), choices.pop("any_block", False)
    layout = "interleaved" if chunk is None else "chunked"
    schedule = ThreadSchedule(
        choices.pop("nb", 2), choices.pop("looking", "top"), choices.pop("unroll", "tiles"),
        threads=choices.pop("threads", chunk or 32), cache=choices.pop("cache", "l1"),
    )  # fmt: skip
    problem = Problem(n, choices.pop("dtype", "float32"), math=choices.pop("math", "fast"))
    spec = KernelSpec(problem, layout, "col", schedule, "cuda")
    assert not choices
    return Point(spec, batch, chunk, 1, "queued", any_block)


def a_row(seconds: float, n: int, **choices: Any) -> Row:
    return Row.timed(a_point(n, **choices), (seconds,), calls=1, ratio=0.1, about=synthetic_sweep.ABOUT)


def loaded(folder: Path, rows: Iterable[Row]) -> points.Data:
    return points.load(synthetic_sweep.write(folder / "data.parquet", list(rows)))


def compared(contender: str, n: int, seconds: float, **more: Any) -> PeerRow:
    values: dict[str, Any] = {
        "contender": contender, "spec": "", "n": n, "batch": BATCH, "dtype": "float32", "protocol": "queued",
        "samples": 20, "seconds": seconds, "spread": 0.0, "floor_seconds": 0.0, "roofline_seconds": 1.0, "ratio": 0.1,
        "date": "2026-01-01", "machine": "m", "commit": "", "version": "", "size": "", "math": "ieee", "layout": "",
        "calls": 1, "timing": "", "copy_bytes_per_second": 1.0, "gpu": "g", "driver": "", "toolkit": "",
        "gpu_clock_mhz": 0.0, "temperature_c": 0.0, "throttle": "",
    }  # fmt: skip
    return replace(PeerRow(**values), **more)
