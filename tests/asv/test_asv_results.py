"""asv's result files as rows: statuses, parameters, samples, and damaged files."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from batchchol.asv_plugin.results import load_results
from batchchol.errors import DataFileError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATE = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
COLUMNS = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "samples"]
TILES = "tiles.Tiles.device_factor"
PUBLISHED = Path(__file__).parents[2] / "datasets" / "asv_h200"


def stored(machine: str = "mine", commit: str = COMMIT, **results: Any) -> dict[str, Any]:
    return {
        "commit_hash": commit,
        "env_name": "checkout-py3.11",
        "date": int(DATE.timestamp() * 1000),
        "params": {"machine": machine},
        "requirements": {},
        "python": "3.11",
        "result_columns": COLUMNS,
        "results": results,
        "version": 2,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    described = {
        TILES: {"param_names": ["n", "layout"], "unit": "seconds"},
        "compiling.track_size": {"param_names": [], "unit": "bytes"},
        "version": 2,
    }
    (tmp_path / "benchmarks.json").write_text(json.dumps(described))
    row = [
        [1e-9, math.nan, None, 4e-9],
        [["8", "16"], ["'chunked'", "None"]],
        "1",
        0,
        0.5,
        [1e-9, None, None, 4e-9],
        [[1e-9, 2e-9], None, None, [4e-9]],
    ]
    size = [[1234], [], "1", 0, 0.5]
    for machine, content in (
        ("mine", stored(**{TILES: row, "compiling.track_size": size})),
        ("other", stored("other", **{TILES: [None, [["8", "16"], ["'chunked'"]], "1"]})),
    ):
        (tmp_path / machine).mkdir()
        (tmp_path / machine / "machine.json").write_text("{}")
        (tmp_path / machine / "01234567-checkout-py3.11.json").write_text(json.dumps(content))
    return tmp_path


def test_every_point_is_a_row_with_its_parameters_and_status(folder: Path) -> None:
    rows = [row for row in load_results(folder, machine="mine") if row.benchmark == TILES]
    assert [(dict(row.params), row.status) for row in rows] == [
        ({"n": 8, "layout": "chunked"}, "measured"),
        ({"n": 8, "layout": None}, "skipped"),
        ({"n": 16, "layout": "chunked"}, "failed"),
        ({"n": 16, "layout": None}, "measured"),
    ]
    assert [row.samples for row in rows] == [(1e-9, 2e-9), (), (), (4e-9,)]
    assert (rows[0].median, rows[3].median) == (1e-9, 4e-9)
    assert math.isnan(rows[1].median)
    assert math.isnan(rows[2].median)
    first = rows[0]
    assert (first.commit, first.date, first.machine) == (COMMIT, DATE, "mine")
    assert (first.unit, first.environment) == ("seconds", "checkout-py3.11")


def recorded(run: str, seconds: float, n: int, clock: int) -> str:
    return json.dumps(
        {
            "run": run,
            "time": (DATE + datetime.timedelta(seconds=seconds)).isoformat(),
            "commit": COMMIT,
            "environment": "checkout-py3.11",
            "benchmark": TILES,
            "params": {"layout": "chunked", "n": n},
            "samples": [1e-9],
            "about": {"conditions": {"before": {"gpu_clock_mhz": clock}}},
        }
    )


def test_a_row_has_the_records_of_its_own_samples(folder: Path) -> None:
    content = stored(**{TILES: [[1e-9, 4e-9], [["8", "16"], ["'chunked'"]], "1", int(DATE.timestamp() * 1000), 60]})
    (folder / "mine" / "01234567-checkout-py3.11.json").write_text(json.dumps(content))
    lines = [recorded("old", -3600, 8, 345), recorded("new", -30, 8, 1980), recorded("new", 30, 8, 1965)]
    (folder / "mine" / "01234567-checkout-py3.11.samples.jsonl").write_text("\n".join(lines) + "\n")
    rows = {row.params["n"]: row for row in load_results(folder, machine="mine")}
    clocks = [record.about["conditions"]["before"]["gpu_clock_mhz"] for record in rows[8].records]
    assert clocks == [1980, 1965]
    assert rows[16].records == ()
    assert all(row.records == () for row in load_results(folder, machine="other"))


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="datasets/ is not part of an installed package")
def test_published_results_are_read_with_their_records() -> None:
    rows = [row for row in load_results(PUBLISHED, machine="h200") if row.status == "measured"]
    assert len({row.commit for row in rows}) > 5
    assert {len(row.records) for row in rows} == {1, 2}
    for row in rows:
        assert {record.about["device"]["gpu"] for record in row.records} == {"NVIDIA H200"}
        assert median(sample for record in row.records for sample in record.samples) == pytest.approx(row.median)


def test_a_damaged_record_is_named(folder: Path) -> None:
    path = folder / "mine" / "01234567-checkout-py3.11.samples.jsonl"
    path.write_text("{\n")
    with pytest.raises(DataFileError, match="line 1") as caught:
        load_results(folder)
    assert caught.value.path == path


def test_a_benchmark_without_parameters_is_one_row(folder: Path) -> None:
    (row,) = (row for row in load_results(folder) if row.benchmark == "compiling.track_size")
    assert (dict(row.params), row.median, row.unit, row.samples) == ({}, 1234.0, "bytes", ())


def test_a_benchmark_that_failed_as_a_whole_fails_at_every_point(folder: Path) -> None:
    rows = load_results(folder, machine="other")
    assert [(dict(row.params), row.status) for row in rows] == [
        ({"n": 8, "layout": "chunked"}, "failed"),
        ({"n": 16, "layout": "chunked"}, "failed"),
    ]


def test_rows_of_a_benchmark_that_has_changed_are_still_read(folder: Path) -> None:
    (folder / "benchmarks.json").write_text(json.dumps({TILES: {"param_names": ["n"]}, "version": 2}))
    rows = [row for row in load_results(folder, machine="mine") if row.benchmark == TILES]
    assert dict(rows[0].params) == {"param1": 8, "param2": "chunked"}


def test_no_results_say_what_to_run(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="no results of machine 'nobody': run `asv run`"):
        load_results(folder, machine="nobody")
    with pytest.raises(DataFileError, match="run `asv run` first"):
        load_results(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "Error parsing JSON"),
        ('{"version": 1}', "old file format.  Run `asv update`"),
        ('{"version": 2}', "not what asv 0.6 writes"),
        ("[]", "not what asv 0.6 writes"),
        (json.dumps(stored(**{TILES: [[1.0], None, "1"]})), "not what asv 0.6 writes"),
    ],
    ids=["no JSON", "another version", "no results", "no object", "no parameters"],
)
def test_a_damaged_file_is_named(folder: Path, content: str, named: str) -> None:
    path = folder / "mine" / "89abcdef-checkout-py3.11.json"
    path.write_text(content)
    with pytest.raises(DataFileError, match=named) as caught:
        load_results(folder)
    assert caught.value.path == path
