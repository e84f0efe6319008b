"""A data set: rows survive whatever happens, and what is damaged is named and costs itself alone."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol.errors import DataFileError
from batchchol.measure import dataset, parquet
from batchchol.measure.dataset import DataSet, merge, read
from batchchol.measure.point import Point
from batchchol.measure.row import COLUMNS, SCHEMA_VERSION, STATUSES, Row, choice_columns, rows_of
from kernelgen import FAMILIES, BlockSchedule, KernelSpec, Problem, SharedSchedule, ThreadSchedule
from kernelgen.schedules.axes import axes_of

pytest.importorskip("pyarrow")

DOCUMENT = Path(__file__).parents[3] / "docs" / "tuning-data.md"


def row(nb: int, status: str = "correct", **values: Any) -> Row:
    spec = KernelSpec(Problem(16), "chunked", "col", ThreadSchedule(nb), "avx2")
    point = Point(spec, 1000, 16)
    if status != "correct":
        return Row(point, status, **values)
    return Row.timed(point, (1e-6, 2e-6, 4e-6), calls=2, ratio=0.5, **values)


def keys(table: Any) -> list[str]:
    return sorted(dataset.key_of_row(values) for values in table.to_pylist())


def test_every_column_is_documented() -> None:
    documented = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", DOCUMENT.read_text(), re.MULTILINE)))
    assert set(COLUMNS) - set(choice_columns()) <= set(documented), "docs/tuning-data.md says what each column is"
    assert set(documented) <= set(COLUMNS)
    assert all(column.doc for column in COLUMNS.values())
    assert all(f'"{status}"' in DOCUMENT.read_text() for status in STATUSES)
    assert f"this page is version {SCHEMA_VERSION}" in DOCUMENT.read_text()


def test_the_documented_types_are_those_of_the_columns() -> None:
    for names, types in re.findall(r"^\| (`.*?) \| (.*?) \|", DOCUMENT.read_text(), re.MULTILINE):
        columns, said = re.findall(r"`(\w+)`", names), types.replace("list of float32", "float32 list").split(", ")
        expected = said * len(columns) if len(said) == 1 else said
        assert [COLUMNS[name].dtype for name in columns] == expected, names


def test_every_choice_of_every_family_has_a_column() -> None:
    for family in FAMILIES.values():
        assert {"block" if name == "threads" else name for name in axes_of(family)} <= set(COLUMNS)


@pytest.mark.parametrize(
    "schedule",
    [ThreadSchedule(4, threads=64, stride=32), SharedSchedule(4, matrices=8), BlockSchedule(4, 8)],
    ids=lambda schedule: schedule.family,
)
def test_a_row_has_the_whole_point(schedule: Any) -> None:
    spec = KernelSpec(Problem(16, uplo="upper"), "chunked", "row", schedule, "cuda")
    point = Point(spec, 1000, 32, 1, "queued", isinstance(schedule, ThreadSchedule))
    values = Row.timed(point, (1.0, 2.0, 3.0, 5.0), ratio=math.inf).values()
    assert list(values) == list(COLUMNS)
    assert Row.of(values).point == point
    assert repr(Row.of(values).values()) == repr(values)
    assert dataset.key_of_row(values) == point.key
    assert (values["family"], values["nb"], values["n"]) == (schedule.family, 4, 16)
    assert values["block"] == getattr(spec.schedule, "threads", None)
    assert (values["median_seconds"], values["spread"], values["ratio"]) == (2.5, 1.75 / 2.5, math.inf)
    assert values["floor_seconds"] is None


def test_a_status_is_one_of_the_list() -> None:
    with pytest.raises(ValueError, match="status: got 'good'"):
        row(4, "good")


def test_rows_are_kept_and_read_in_one_line(tmp_path: Path) -> None:
    with DataSet(tmp_path / "data", "a CPU") as data:
        data.append(row(4, about={"temperature_c": 50.0, "code_bytes": 100}))
        data.append(row(5, "timeout", message="too slow"))
        assert set(data.done) == {row(4).point.key, row(5).point.key}
    table = read(tmp_path / "data")
    assert table.column_names == list(COLUMNS)
    first, second = table.to_pylist()
    assert first["sample_seconds"] == pytest.approx([1e-6, 2e-6, 4e-6])
    assert (first["temperature_c"], first["code_bytes"], first["median_seconds"]) == (50.0, 100, 2e-6)
    assert (second["status"], second["message"], second["median_seconds"]) == ("timeout", "too slow", None)
    pandas = pytest.importorskip("pandas")
    assert list(pandas.read_parquet(tmp_path / "data")["nb"]) == [4, 5]
    polars = pytest.importorskip("polars")
    assert polars.read_parquet(tmp_path / "data" / "*.parquet")["nb"].to_list() == [4, 5]


def test_a_writer_that_vanishes_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not closed, as when it is killed: some rows are in Parquet files, others in the journal."""
    monkeypatch.setattr(dataset, "SHARD_ROWS", 3)
    lost = DataSet(tmp_path, "a CPU")
    for nb in range(1, 9):
        lost.append(row(nb))
    assert len(list(tmp_path.glob("points-*.parquet"))) == 2
    assert keys(read(tmp_path)) == sorted(lost.done), "a data set can be read while it is written"
    os.close(lost._lock)
    with DataSet(tmp_path, "a CPU") as data:
        assert data.done == lost.done
        data.append(row(9))
    assert keys(read(tmp_path)) == sorted(row(nb).point.key for nb in range(1, 10))
    assert (tmp_path / "_journal.jsonl").stat().st_size == 0


def test_rows_between_a_file_and_the_journals_end_are_there_once(tmp_path: Path) -> None:
    """A writer that was killed after the Parquet file and before the new journal: the rows are in both."""
    with DataSet(tmp_path, "a CPU") as data:
        data.append(row(4))
        journal = (tmp_path / "_journal.jsonl").read_bytes()
    (tmp_path / "_journal.jsonl").write_bytes(journal)
    assert len(read(tmp_path)) == 1
    with DataSet(tmp_path, "a CPU"):
        pass
    assert len(read(tmp_path)) == 1


def test_a_torn_line_is_measured_anew_and_a_damaged_one_named(tmp_path: Path) -> None:
    lost = DataSet(tmp_path, "a CPU")
    for nb in (3, 4, 5):
        lost.append(row(nb))
    os.close(lost._lock)
    lines = (tmp_path / "_journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "_journal.jsonl").write_bytes(lines[0][:-30] + b"\n" + lines[1] + lines[2][:100])
    said: list[str] = []
    with DataSet(tmp_path, "a CPU", said.append) as data:
        assert set(data.done) == {row(4).point.key}
    assert len(said) == 1
    assert "_journal.jsonl: line 1 is damaged" in said[0]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "other"])
def test_a_damaged_file_is_named_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(dataset, "SHARD_ROWS", 2)
    with DataSet(tmp_path, "a CPU") as data:
        for nb in range(1, 7):
            data.append(row(nb))
    path = tmp_path / "points-000002.parquet"
    whole = path.read_bytes()
    flipped = bytes(byte ^ (0xFF if 20 < at < 2000 else 0) for at, byte in enumerate(whole))
    path.write_bytes({"truncated": whole[:-20], "flipped": flipped, "empty": b"", "other": b"a text" * 9}[damage])
    said: list[str] = []
    assert len(read(tmp_path, said.append)) == 4
    assert "points-000002.parquet" in said[0]
    with DataSet(tmp_path, "a CPU", said.append) as data:
        assert len(data.done) == 4
        for nb in range(1, 7):
            if row(nb).point.key not in data.done:
                data.append(row(nb))
    assert "points-000002.parquet" in said[1]
    assert (tmp_path / "_damaged-points-000002.parquet").exists()
    assert keys(read(tmp_path)) == sorted(row(nb).point.key for nb in range(1, 7))
    assert not (tmp_path / "points-000002.parquet").exists(), "numbers are not used again"


def full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_loses_nothing_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataSet(tmp_path, "a CPU")
    data.append(row(4))
    write = os.write

    def until_full(file: int, line: bytes) -> int:
        return write(file, line[:100]) if len(line) > 900 else full()

    monkeypatch.setattr(dataset.os, "write", until_full)
    with pytest.raises(DataFileError, match=r"_journal.jsonl: writing: No space left on device; what was kept"):
        data.append(row(5))
    monkeypatch.undo()
    assert set(data.done) == {row(4).point.key}
    data.append(row(6))
    os.close(data._lock)
    with DataSet(tmp_path, "a CPU", pytest.fail) as again:
        assert set(again.done) == {row(4).point.key, row(6).point.key}


def test_a_full_disk_loses_nothing_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataSet(tmp_path, "a CPU")
    data.append(row(4))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataFileError, match=r"points-000001.parquet: writing: No space left on device"):
        data.close()
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))
    with DataSet(tmp_path, "a CPU") as again:
        assert set(again.done) == {row(4).point.key}
    assert len(read(tmp_path)) == 1


def test_a_full_disk_right_after_a_file_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataSet(tmp_path, "a CPU")
    data.append(row(4))
    replace = dataset.replace_file
    monkeypatch.setattr(dataset, "replace_file", lambda path, lines: replace(path, lines) if lines else full())
    with pytest.raises(OSError, match="No space left"):
        data.flush()
    monkeypatch.undo()
    data.append(row(5))
    data.close()
    with DataSet(tmp_path, "a CPU", pytest.fail) as again:
        assert set(again.done) == {row(4).point.key, row(5).point.key}


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    with DataSet(tmp_path, "a CPU"), pytest.raises(DataFileError, match="another sweep is writing to this folder"):
        DataSet(tmp_path, "a CPU")
    DataSet(tmp_path, "a CPU").close()


def test_a_folder_is_of_one_device(tmp_path: Path) -> None:
    DataSet(tmp_path, "a CPU").close()
    with pytest.raises(DataFileError, match="its rows are of 'a CPU', not of 'a GPU': choose another folder"):
        DataSet(tmp_path, "a GPU")
    DataSet(tmp_path, "a CPU").close()


def test_another_version_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataSet(tmp_path / "data", "a CPU") as data:
        data.append(row(4))
    other = parquet.schema().with_metadata({parquet.VERSION_KEY: b"2"})
    path = tmp_path / "data" / "points-000001.parquet"
    path.write_bytes(parquet.encode(parquet.read(path).cast(other)))
    for attempt in (lambda: read(tmp_path / "data"), lambda: read(path), lambda: DataSet(tmp_path / "data", "a CPU")):
        with pytest.raises(DataFileError, match=r"points-000001.parquet: schema: version 2, expected 1"):
            attempt()
    assert path.exists()
    manifest = tmp_path / "data" / "_sweep.json"
    manifest.write_text(json.dumps({"schema": 7, "device": "a CPU"}))
    with pytest.raises(DataFileError, match=r"_sweep.json: schema: version 7, expected 1"):
        DataSet(tmp_path / "data", "a CPU")


def test_columns_that_are_new_are_null_in_older_files(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    table = parquet.table([row(4).values()]).drop_columns(["occupancy", "any_block"])
    path.write_bytes(parquet.encode(table))
    assert read(path).to_pylist()[0]["occupancy"] is None


@pytest.mark.parametrize("content", ["nothing", "a folder", "csv"])
def test_what_is_no_data_set_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "data"
    if content == "a folder":
        path.mkdir()
    elif content == "csv":
        path.write_text("n,nb\n4,2\n")
    with pytest.raises(DataFileError, match=str(path)):
        read(path)


def test_a_parquet_file_of_something_else_is_refused(tmp_path: Path) -> None:
    table = parquet.pyarrow().table({"n": [1, 2]})
    (tmp_path / "other.parquet").write_bytes(parquet.encode(table))
    with pytest.raises(DataFileError, match="not a data set of a sweep"):
        read(tmp_path / "other.parquet")


def test_a_folder_becomes_one_small_file_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "SHARD_ROWS", 40)
    random = np.random.default_rng(1)
    with DataSet(tmp_path / "data", "a CPU") as data:
        for n in range(120, 20, -1):
            for nb in range(1, 17):
                spec = KernelSpec(Problem(n), "chunked", "col", ThreadSchedule(nb), "avx2")
                seconds = tuple(random.uniform(1e-5, 2e-5, 20))
                data.append(Row.timed(Point(spec, 1000, 16), seconds, source=f"{n:08x}{nb:08x}"))
    file = tmp_path / "data.parquet"
    assert merge(tmp_path / "data", file) == 1600
    table = read(file)
    assert table["n"].to_pylist() == sorted(table["n"].to_pylist())
    assert keys(table) == keys(read(tmp_path / "data"))
    assert file.stat().st_size < 1600 * 250, "20,000 rows are to be 5 MB at most"


def test_rows_are_the_same_from_files_and_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "SHARD_ROWS", 2)
    with DataSet(tmp_path, "a CPU") as data:
        for nb in (3, 4, 5):
            data.append(row(nb))
        rows = dataset.read_rows(tmp_path)
        assert [values["nb"] for values in rows] == [3, 4, 5]
        assert [each.point for each in rows_of(rows)] == [row(nb).point for nb in (3, 4, 5)]
        assert rows[2] == row(5).values(), "of the journal"


def test_without_pyarrow_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Exception, match=r"pip install -e '\.\[tune\]'"):
        parquet.pyarrow()


def test_an_interrupt_leaves_a_row_whole_or_not_at_all(tmp_path: Path) -> None:
    class Interrupted(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            raise KeyboardInterrupt

    with DataSet(tmp_path / "data", "a CPU") as data:
        data.done, known = Interrupted(), data.done
        with pytest.raises(KeyboardInterrupt):
            data.append(row(1))
        data.done = known
        data.append(row(1))
        data.append(row(2))
    assert len(dataset.read_rows(tmp_path / "data")) == 2
