"""Rows of a sweep that was not run: what the tests of tables choose from."""

from __future__ import annotations

from typing import Any

from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.tune.choosing.winners import FINAL_SAMPLES
from kernelgen import KernelSpec, Layout, Problem, Schedule, ThreadSchedule

SMALL, LARGE = 1024, 1 << 20
ABOUT = {"device": "a GPU", "toolkit": "CUDA", "date": "2026-11-21T20:00:00"}


def a_row(
    n: int,
    schedule: Schedule,
    seconds: float,
    batch: int = SMALL,
    chunk: int | None = 32,
    *,
    layout: Layout | None = None,
    dtype: str = "float32",
    uplo: str = "lower",
    **said: Any,
) -> Row:
    placed = layout or Layout.chunked(chunk or 32)
    problem = Problem(n, dtype, uplo, said.pop("op", "potrf"), said.pop("math", "ieee"))
    spec = KernelSpec(problem, placed.kind, placed.order, schedule, said.pop("target", "cuda"))
    point = Point(spec, batch, placed.chunk, protocol=said.pop("protocol", "queued"))
    columns = {"status": "correct", "samples": FINAL_SAMPLES, "about": ABOUT} | said
    return Row(point, median_seconds=seconds, **columns)


def thread(nb: int, stride: int | None = None) -> ThreadSchedule:
    return ThreadSchedule(nb, stride=stride)
