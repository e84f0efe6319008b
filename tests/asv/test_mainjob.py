"""The table of the main job: the best of each order, its spread, and what it says of a machine that is busy."""

from __future__ import annotations

import datetime
from types import MappingProxyType
from typing import Any

import pytest

from batchchol import get_backend
from batchchol.asv_plugin.results import ResultRow
from batchchol.asv_plugin.samples import SampleRecord
from batchchol.cli.laboratory.run import BestRow, best_rows, doubts, table
from batchchol.operations.roofline import Ceilings

TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CEILINGS = Ceilings(30e9, 100e9, 1, "float32", "generic")


def row(benchmark: str, seconds: float, samples: tuple[float, ...] = (), **params: Any) -> ResultRow:
    named = {"n": 8, "batch": 16_384, "dtype": "float32", **params}
    records = (SampleRecord("run", TIME, "c", "e", benchmark, named, samples, {}),) if samples else ()
    about = ("machine", "e", "c", TIME, benchmark, MappingProxyType(named), "measured", seconds, (), "seconds")
    return ResultRow(*about, records)


def best(**changed: Any) -> BestRow:
    fields = {
        "n": 8,
        "schedule": "nb=2, left, full",
        "seconds_per_matrix": 2e-8,
        "spread": 0.03,
        "gflops": 8.5,
        "roofline_fraction": 0.45,
        "times_numpy": 30.0,
        "call_times_numpy": None,
    }
    return BestRow(**{**fields, **changed})


def test_best_row_has_the_spread_of_its_own_samples() -> None:
    tiles = {"backend": "cpu", "threads": 1, "nb": 3, "looking": "left", "unroll": "tiles"}
    rows = [
        row("tiles.Tiles.device_factor", 3e-8, (3e-8,) * 4, **tiles),
        row("tiles.Tiles.device_factor", 2e-8, (1e-8, 2e-8, 2e-8, 3e-8), **{**tiles, "nb": 4}),
        row("whole_call.Numpy.time_cholesky", 16_384 * 6e-7),
    ]
    (found,) = best_rows(rows, get_backend("cpu"), CEILINGS)
    assert (found.schedule, found.seconds_per_matrix, found.times_numpy) == (
        "nb=4, left, tiles",
        2e-8,
        pytest.approx(30),
    )
    assert found.spread == pytest.approx(0.25)


def test_table_has_a_cell_for_every_head() -> None:
    lines = table([best(), best(n=16, call_times_numpy=12.3)]).splitlines()
    assert {line.count("|") for line in lines} == {9}
    assert "| 3% |" in lines[2]


@pytest.mark.parametrize(
    ("rows", "timed", "said"),
    [
        ([best()], (3.0e-7, 3.2e-7), []),
        ([best()], (3.14e-7, 5.71e-7), ["the same kernel (n = 32) took 314 and 571 ns"]),
        ([best(), best(n=16, spread=0.4)], (), ["samples of n = 16 differ"]),
        ([best(roofline_fraction=2.5)], (), ["above 100%"]),
    ],
)
def test_busy_machines_are_named(rows: list[BestRow], timed: tuple[float, ...], said: list[str]) -> None:
    found = doubts(rows, timed)
    assert len(found) == len(said)
    assert all(words in text for words, text in zip(said, found, strict=True))
