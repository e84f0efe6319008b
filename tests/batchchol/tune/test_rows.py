"""Rows of tuning data: flat, and with the same columns whatever the family of kernels."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from batchchol.errors import DataFileError
from batchchol.operations.roofline import Ceilings
from batchchol.tune.rows import append, read_points, row
from batchchol.tune.tuning import Point
from kernelgen import BlockSchedule, KernelSpec, Layout, Problem, Schedule, SharedSchedule, ThreadSchedule

SWEEP = Path(__file__).parents[3] / "datasets/shared_h200.parquet"
CEILINGS = Ceilings(4e12, 6e13, 1, "float32", "cuda")


def row_of(schedule: Schedule) -> dict[str, object]:
    spec = KernelSpec(Problem(9), "chunked", "col", schedule, "cuda")
    return row(Point(spec, 32, 1024, 1, "queued", "correct"), CEILINGS, {"commit": "0123abc"})


def test_rows_of_every_family_have_the_same_columns() -> None:
    thread, shared, block = map(row_of, (ThreadSchedule(3), SharedSchedule(3, "top", 5), BlockSchedule(4, 8)))
    assert list(thread) == list(shared) == list(block)
    assert [values["family"] for values in (thread, shared, block)] == ["thread", "shared", "block"]
    # The threads of a block, for those of a row are the host's.
    assert (thread["block"], thread["threads"], shared["block"]) == (32, 1, None)
    assert (shared["looking"], shared["matrices"], block["looking"], block["lanes"]) == ("top", 5, None, 8)


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
def test_points_survive_their_file(schedule: Schedule, layout: Layout, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    own = replace(schedule, stride=8) if layout.chunk else schedule
    spec = KernelSpec(Problem(13, "float64", "upper"), layout.kind, layout.order, own, "cuda")
    point = Point(spec, layout.chunk, 1000, 1, "queued", "correct", 1.5e-5, 0.25, 0.5, 25, 2e-6)
    slow = replace(point, status="timeout", samples=0)
    where = {"gpu": "a GPU", "toolkit": "CUDA", "date": "today"}
    append(path, [row(each, Ceilings(4e12, 6e13, 1, "float64", "cuda"), where) for each in (slow, point)])
    found = read_points(path)
    # As text: it has numbers that are none, and equal nothing.
    assert repr(found.points) == repr((point,))
    assert (found.machine, found.toolkit, found.date, found.copy_bytes_per_second) == (*where.values(), 4e12)


@pytest.mark.parametrize(
    ("column", "text", "words"),
    [("nb", "99", "line 2: .*nb=99"), ("family", "cosy", "line 2: .*cosy"), ("status", "wrong", "no correct")],
)
def test_points_that_cannot_be_are_named(column: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    spec = KernelSpec(Problem(13), "chunked", "col", ThreadSchedule(4), "cuda")
    point = Point(spec, 32, 1000, 1, "queued", "correct", 1.5e-5, 0.25, 0.5, 25, 2e-6)
    values = row(
        point, Ceilings(4e12, 6e13, 1, "float32", "cuda"), {"gpu": "a GPU", "toolkit": "CUDA", "date": "today"}
    )
    append(path, [values | {column: text}])
    with pytest.raises(DataFileError, match=words):
        read_points(path)


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


def test_kernels_that_cannot_be_built_any_more_are_left_out(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="2 of 4 points are of kernels that this version cannot build"):
        some = read_points(data_set(tmp_path / "some.parquet", {0, 2}))
    all_of_them = read_points(data_set(tmp_path / "all.parquet", ()))
    assert some.points == all_of_them.points[1::2]
    with pytest.raises(DataFileError, match="has no kernel that this version can build"):
        read_points(data_set(tmp_path / "none.parquet", range(4)))
