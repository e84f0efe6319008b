"""CSV files of `tune`: flat, with the same columns whatever the family of kernels."""

from __future__ import annotations

import csv
import json
import resource
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from batchchol.errors import DataFileError
from batchchol.measure.csv_file import append
from batchchol.measure.dataset import read_correct
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.operations.roofline import Ceilings, roofline_seconds
from kernelgen import BlockSchedule, KernelSpec, Layout, Problem, Schedule, SharedSchedule, ThreadSchedule

SWEEP = Path(__file__).parents[3] / "datasets/sweeps/shared_h200.parquet"
RATES = {"copy_bytes_per_second": 4e12, "peak_flops_per_second": 6e13}
ABOUT = {"gpu": "a GPU", "toolkit": "CUDA", "date": "today"}


def a_row(spec: KernelSpec, chunk: int | None = 32, **columns: Any) -> Row:
    point = Point(spec, 1000, chunk, 1, "queued")
    given = {"samples": 25, "median_seconds": 1.5e-5, "spread": 0.25, "ratio": 0.5, "floor_seconds": 2e-6}
    return Row(point, **{"status": "correct", **given, "about": RATES, **columns})


def written(path: Path, *rows: Row) -> list[dict[str, str]]:
    append(path, rows, ABOUT)
    return list(csv.DictReader(path.read_text().splitlines()))


def test_rows_of_every_family_have_the_same_columns(tmp_path: Path) -> None:
    schedules = (ThreadSchedule(3), SharedSchedule(3, "top", 5), BlockSchedule(4, 8))
    specs = [KernelSpec(Problem(9), "chunked", "col", schedule, "cuda") for schedule in schedules]
    thread, shared, block = written(tmp_path / "points.csv", *map(a_row, specs))
    assert [values["family"] for values in (thread, shared, block)] == ["thread", "shared", "block"]
    # The threads of a block, for those of a row are the host's.
    assert (thread["block"], thread["threads"], shared["block"]) == ("32", "1", "")
    assert (shared["looking"], shared["matrices"], block["looking"], block["lanes"]) == ("top", "5", "", "8")


@pytest.mark.parametrize("layout", [Layout.chunked(8), Layout.interleaved(), Layout.canonical("row")], ids=str)
@pytest.mark.parametrize(
    "schedule",
    [
        ThreadSchedule(4, "top", "full", threads=64),
        SharedSchedule(4, matrices=8),
        BlockSchedule(4, 8, blocks=2),
    ],
    ids=lambda schedule: schedule.family,
)
def test_rows_survive_their_file(schedule: Schedule, layout: Layout, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    own = replace(schedule, stride=8) if layout.chunk else schedule
    spec = KernelSpec(Problem(13, "float64", "upper"), layout.kind, layout.order, own, "cuda")
    row = a_row(spec, layout.chunk)
    slow = replace(row, status="timeout", samples=0)
    append(path, [slow, row], ABOUT)
    append(path, [row], ABOUT)
    first, second = read_correct(path)
    assert first.point == second.point == row.point
    numbers = ("status", "samples", "median_seconds", "spread", "ratio", "floor_seconds")
    assert [getattr(first, name) for name in numbers] == [getattr(row, name) for name in numbers]
    assert first.about == {**RATES, **ABOUT, "device": "a GPU"}
    assert (first.toolkit, first.day) == ("CUDA", "today")
    ceilings = Ceilings(*RATES.values(), 1, "float64", "cuda")
    assert first.roofline_seconds == roofline_seconds(13, 1000, layout, ceilings)


def test_operations_survive_their_file(tmp_path: Path) -> None:
    path, schedule = tmp_path / "points.csv", ThreadSchedule(1, "right", "full", split=4, threads=128)
    row = a_row(KernelSpec(Problem(16, op="gesv"), "canonical", "row", schedule, "cuda"), None)
    append(path, [row], ABOUT)
    assert [each.point for each in read_correct(path)] == [row.point]


@pytest.mark.parametrize(
    ("column", "text", "words"),
    [("nb", "99", "line 2: .*nb=99"), ("family", "cosy", "line 2: .*cosy"), ("status", "wrong", "no correct")],
)
def test_rows_that_cannot_be_are_named(column: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    spec = KernelSpec(Problem(13), "chunked", "col", ThreadSchedule(4), "cuda")
    (values,) = written(path, a_row(spec))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(values))
        writer.writeheader()
        writer.writerow(values | {column: text})
    with pytest.raises(DataFileError, match=words):
        read_correct(path)


def of_an_older_version(definition: str) -> str:
    """With a choice that no family has any more."""
    values = json.loads(definition)
    values["schedule"]["gone"] = 1
    return json.dumps(values)


def data_set(path: Path, older: Collection[int]) -> Path:
    """Four points of a sweep, some of which an older version wrote."""
    table = parquet.read_table(SWEEP).slice(0, 4)
    definitions = table["definition"].to_pylist()
    changed = [of_an_older_version(each) if place in older else each for place, each in enumerate(definitions)]
    place = table.schema.get_field_index("definition")
    parquet.write_table(table.set_column(place, table.schema.field(place), [changed]), path)
    return path


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path, one = tmp_path / "points.csv", a_row(KernelSpec(Problem(9), "chunked", "col", ThreadSchedule(3), "cuda"))
    append(path, [one], ABOUT)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(DataFileError, match=r"points\.csv: writing: File too large"):
            append(path, [one], ABOUT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before


def test_kernels_that_cannot_be_built_any_more_are_left_out(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="2 of 4 points are of kernels that this version cannot build"):
        some = read_correct(data_set(tmp_path / "some.parquet", {0, 2}))
    all_of_them = read_correct(data_set(tmp_path / "all.parquet", ()))
    assert repr(some) == repr(all_of_them[1::2])
    with pytest.raises(DataFileError, match="has no kernel that this version can build"):
        read_correct(data_set(tmp_path / "none.parquet", range(4)))
