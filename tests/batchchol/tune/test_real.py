"""Sweeps on a real GPU: what it does to a process, and how long a point takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from batchchol import cli
from batchchol.measure.dataset import read
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from kernelgen import KernelSpec, Problem, ThreadSchedule

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).parents[2]


def point(nb: int) -> Point:
    return Point(KernelSpec(Problem(16), "chunked", "col", ThreadSchedule(nb), "cuda"), 16384, 32, 1, "queued", True)


def test_an_illegal_access_and_a_hang_cost_a_point_each() -> None:
    environment = {"PYTHONPATH": str(TESTS)}
    with Measurer("cuda", bench="sweep_benches:OnGpu", environment=environment, time_limit=10.0) as measurer:
        rows = {nb: measurer.measure(point(nb)) for nb in (4, 2, 5, 3, 6)}
    assert {nb: row.status for nb, row in rows.items()} == {
        4: "correct",
        2: "runtime",
        5: "correct",
        3: "timeout",
        6: "correct",
    }
    assert "illegal memory access" in rows[2].message


def test_a_point_takes_little_more_than_the_gpu_needs(tmp_path: Path) -> None:
    """The study's space at two orders: everything correct, under 50 ms a point with its checks."""
    data = tmp_path / "paper"
    options = ["--space", "paper", "--backend", "cuda", "--n", "8,24", "--math", "fast", "--data", str(data)]
    assert cli.main(["tune", *options]) == 0
    rows = read(tmp_path / "paper.parquet").to_pylist()
    assert len(rows) > 1_000
    assert sum(row["status"] not in ("correct", "unsupported") for row in rows) <= 0.03 * len(rows)
    wall = [row["wall_seconds"] for row in rows if row["status"] == "correct"]
    assert np.mean(wall) < 0.05
    assert {row["samples"] for row in rows if row["status"] == "correct"} == {20}
    assert all(row["registers"] and 0 < row["occupancy"] <= 1 for row in rows if row["status"] == "correct")


def test_code_for_blocks_of_any_size_is_as_fast_as_the_specs_own() -> None:
    """To within what the compiler's choice of registers makes of it: a large difference would be a mistake."""
    with Measurer("cuda") as measurer:
        for nb in (4, 8):
            shared, own = measurer.measure(point(nb)), measurer.measure(point(nb).own)
            assert (shared.status, own.status) == ("correct", "correct")
            assert shared.median_seconds == pytest.approx(own.median_seconds, rel=0.25)
