"""Rows of a comparison: what they derive, their file, and their table."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol.compare.rows import Row, columns, read_rows, table, write_csv
from batchchol.errors import DataFileError


def a_row(**values: Any) -> Row:
    plain = Row(
        contender="batchchol factor",
        spec="a_spec",
        n=4,
        batch=1000,
        dtype="float32",
        threads=1,
        protocol="single call",
        samples=20,
        seconds=2e-5,
        spread=0.125,
        floor_seconds=1e-6,
        roofline_seconds=5e-6,
        ratio=0.5,
        times_numpy=12.5,
        date="2026-11-21",
        machine="a machine",
        commit="c0ffee",
        version="1.0, of today",
    )
    return replace(plain, **values)


def test_rows_derive_what_readers_want() -> None:
    row = a_row()
    assert row.ns_per_matrix == pytest.approx(20)
    assert row.gflops == pytest.approx(64 / 3 / 20)
    assert row.roofline_fraction == pytest.approx(0.25)
    assert row.roofline_gflops == pytest.approx(4 * row.gflops)


def test_rows_survive_their_file(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    rows = [a_row(), a_row(n=8, contender="numpy", version='quoted, "twice"', times_numpy=1.0)]
    write_csv(out, rows)
    assert read_rows(out) == rows
    header = out.read_text().splitlines()[0].split(",")
    assert header == [*columns(on_gpu=False), "ns_per_matrix", "gflops", "roofline_fraction", "roofline_gflops"]
    write_csv(out, [a_row(times_numpy=math.nan)])
    assert math.isnan(read_rows(out)[0].times_numpy)
    assert read_rows(tmp_path / "none.csv") == []


@pytest.mark.parametrize(
    ("text", "place"),
    [("n,batch\n4,5\n", "line 2"), ("nonsense\n\x00\n", "line 2"), ("n\n", None), ("\xff\xfe", None)],
)
def test_a_file_of_something_else_is_refused_by_line(tmp_path: Path, text: str, place: str | None) -> None:
    out = tmp_path / "rows.csv"
    out.write_bytes(text.encode("latin-1"))
    if place is None and text.isascii():
        assert read_rows(out) == []
        return
    with pytest.raises(DataFileError, match=f"rows.csv: {place or 'reading'}"):
        read_rows(out)


def test_a_truncated_file_is_refused_by_line(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    write_csv(out, [a_row(), a_row(n=5)])
    out.write_text(out.read_text()[:-30])
    with pytest.raises(DataFileError, match="line 3: not a row of a comparison"):
        read_rows(out)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataFileError, match="there is a file of this name"):
        write_csv(tmp_path / "file" / "rows.csv", [a_row()])
    assert (tmp_path / "file").read_text() == "in the way"


def test_the_table_is_aligned_markdown() -> None:
    assert table(
        [a_row(contender="us"), a_row(contender="numpy", n=100, seconds=1.0, times_numpy=1.0, spec="s")]
    ) == (
        "|   n | threads | contender |   ns/matrix | GFLOP/s | roofline | × NumPy | spread | residual | spec   |\n"
        "| --: | ------: | :-------- | ----------: | ------: | -------: | ------: | -----: | -------: | :----- |\n"
        "|   4 |       1 | us        |        20.0 |    1.07 |      25% |    12.5 |    12% |    0.500 | a_spec |\n"
        "| 100 |       1 | numpy     | 1,000,000.0 |    0.33 |       0% |     1.0 |    12% |    0.500 | s      |\n"
    )


def test_joules_are_columns_only_where_they_were_measured(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    spent = a_row(joules=2e-3, joules_uncertainty=4e-5, watts=100.0, idle_watts=20.0)
    write_csv(out, [spent, a_row(n=8)])
    found = read_rows(out)
    assert found[0] == spent
    assert math.isnan(found[1].joules)
    assert "2 ± 2%" in table(found)
    write_csv(out, [a_row()])
    assert "joules" not in out.read_text()
    assert "µJ" not in table([a_row()])
