"""The page of the suite's results: what it says of each point, and that it loads nothing."""

from __future__ import annotations

import datetime
import math
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from batchchol.asv_plugin.page import Series, shown, write
from batchchol.asv_plugin.results import ResultRow
from batchchol.errors import BatchcholError

DAY = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
NAME = "tiles.Tiles.device_factor"
# What would make a browser ask another host, or this one, for more.
LOADS = re.compile(r"https?:|//[a-z]|<script|<link(?! rel=\"icon\" href=\"data:,\")|@import|url\(|src=")


def row(commit: int, median: float, status: str = "measured", machine: str = "mine", **params: Any) -> ResultRow:
    date = DAY + datetime.timedelta(days=commit)
    said = MappingProxyType({"n": 8, "chunk": None, "batch": 1024, **params})
    return ResultRow(machine, "env", f"{commit}" * 40, date, NAME, said, status, median, (), "seconds")


def test_points_have_their_history_in_the_order_of_commits(tmp_path: Path) -> None:
    rows = [row(2, 3e-9), row(1, 2e-9), row(3, math.nan, "skipped"), row(1, 5e-9, n=16), row(2, 5.1e-9, n=16)]
    (machine,) = write(rows, tmp_path / "new" / "page.html")
    (table,) = machine.tables
    assert [commit.name for commit in machine.commits] == ["1" * 8, "2" * 8]
    assert table.fixed == "batch = 1024"
    assert {each.label: each.medians for each in table.series} == {"n = 8": (2e-9, 3e-9), "n = 16": (5e-9, 5.1e-9)}
    assert [each.tone for each in table.series] == ["bad", ""]
    text = (tmp_path / "new" / "page.html").read_text()
    assert "+50.0%" in text
    assert "3 ns" in text
    assert not LOADS.search(text)


def test_failures_are_named_and_machines_kept_apart(tmp_path: Path) -> None:
    rows = [row(1, 1e-9), row(2, math.nan, "failed"), row(1, 2e-9, machine="<other>")]
    other, mine = write(rows, tmp_path / "page.html")
    assert (other.name, mine.name) == ("<other>, env", "mine, env")
    assert mine.tables[0].series[0].failed
    text = (tmp_path / "page.html").read_text()
    assert "failed" in text
    assert "&lt;other&gt;" in text
    assert "<other>" not in text


def test_charts_begin_at_zero_and_leave_gaps_out() -> None:
    series = Series("n = 8", (4.0, math.nan, 1.0), "seconds", False)
    assert series.line == "0.0,0.0 120.0,18.0"
    assert series.end == ["120.0", "18.0"]
    assert (series.change, series.tone) == (-0.75, "good")
    assert Series("n = 8", (math.nan,), "seconds", True).end == []


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2.5e-9, "seconds", "2.5 ns"), (2.0, "seconds", "2 s"), (5820, "bytes", "5,820 bytes"), (0, "seconds", "0 ps")],
)
def test_numbers_have_units(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_nothing_measured_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(BatchcholError, match="no point of the suite was measured"):
        write([row(1, math.nan, "skipped")], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
