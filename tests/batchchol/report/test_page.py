"""`report` on a data set: the page stands by itself, the figures are there, and mistakes are named."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from batchchol import cli
from batchchol.measure.dataset import DataSet
from batchchol.measure.row import Row
from batchchol.report import data as points
from batchchol.report import style

from ... import synthetic_sweep

for package in ("pandas", "sklearn", "matplotlib", "pyarrow"):
    pytest.importorskip(package, reason="reports need pip install -e '.[report]'")

NUMBERS = (13, 15, 16, 17, 18, 19, 20, 21)


class Page(HTMLParser):
    """What a browser would fetch, and whether what is opened is closed."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [
            value or "" for name, value in attributes if name == "src" or (tag == "link" and name == "href")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    chosen = synthetic_sweep.points(400, n=[4, 8, 32])
    return [
        synthetic_sweep.row(point, "timeout" if place % 100 == 7 else "correct") for place, point in enumerate(chosen)
    ]


@pytest.fixture
def data(tmp_path: Path, rows: list[Row]) -> Path:
    return synthetic_sweep.write(tmp_path / "sweep.parquet", rows)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are painted, but not written: that takes most of the time."""

    def write(figure: Any, path: Path, _: str) -> Path:
        assert figure.axes
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        return path

    monkeypatch.setattr(style, "_write", write)


def test_page_and_figures_of_a_data_set(
    data: Path, rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = [synthetic_sweep.row(row.point, seed=2) for row in rows]
    second = synthetic_sweep.write(tmp_path / "again.parquet", again)
    assert cli.main(["report", str(data), "--trees", "10", "--again", str(second)]) == 0
    folder = tmp_path / "sweep-report"
    page = (folder / "report.html").read_text()
    parsed = Page(page)
    assert not parsed.open
    assert parsed.fetched
    assert all(source.startswith("data:") for source in parsed.fetched), "the page opens without a network"
    assert "url(" not in page
    assert "<script" not in page
    assert [int(number) for number in re.findall(r"<b>Figure (\d+)\.", page)] == list(NUMBERS)
    assert "Figure 14, speedup over peers: no comparison was given" in page
    assert page.count("A block of threads works on one chunk") == 1
    for number in NUMBERS:
        (png,) = folder.glob(f"figure-{number}-*.png")
        (svg,) = folder.glob(f"figure-{number}-*.svg")
        assert png.read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert (folder / "two-sweeps.svg").is_file()
    assert "<b>Two sweeps." in page
    said = capsys.readouterr().out
    assert "correct: 396, timeout: 4" in said
    assert "two sweeps: 6 of 6 sizes have the same winner or one within 3% (100.0%, expected 95%)" in said
    assert "forest: 10 trees, average depth" in said
    assert "held-out orders: R2" in said
    assert str(folder / "report.html") in said


@pytest.mark.usefixtures("unrendered")
def test_a_folder_that_is_still_written_to(
    tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "sweep", tmp_path / "out"
    with DataSet(folder, "made up") as written:
        for row in rows[:80]:
            written.append(row)
        written.flush()
        written.append(rows[80])
        assert cli.main(["report", str(folder), "--out", str(out), "--trees", "3", "--n", "8"]) == 0
    assert "correct: 80, timeout: 1" in capsys.readouterr().out
    assert "Every kernel at n = 8" in (out / "report.html").read_text()


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("family", ["block", "warp"])
def test_other_families_have_reports_too(family: str, tmp_path: Path) -> None:
    """They lack some of the choices of the family that the study is about."""
    chosen = synthetic_sweep.points(80, "full", n=[20, 32, 40], family=[family], batch=[16384])
    data = synthetic_sweep.write(tmp_path / "data.parquet", [synthetic_sweep.row(point) for point in chosen])
    assert cli.main(["report", str(data), "--trees", "3"]) == 0
    page = (tmp_path / "data-report" / "report.html").read_text()
    assert f"family {family}" in page
    assert "R²" in page
    assert "Course study, plot" not in page
    assert "There are no points of that family with chunks" in page


@pytest.mark.usefixtures("unrendered")
def test_the_course_study_has_its_plots_and_its_rule(tmp_path: Path) -> None:
    chosen = synthetic_sweep.points(300, "study2", n=[20, 40], batch=[16384])
    data = synthetic_sweep.write(tmp_path / "data.parquet", [synthetic_sweep.row(point) for point in chosen])
    assert cli.main(["report", str(data), "--trees", "3"]) == 0
    page = (tmp_path / "data-report" / "report.html").read_text()
    assert re.findall(r"<b>Course study, (\w+ ?\d?)\.", page) == ["plot 1", "plot 2", "plot 3", "plot 4", "rule"]
    assert "The best within the rule gains" in page


@pytest.mark.usefixtures("unrendered")
def test_a_ceiling_that_was_measured_too_low_is_no_headline(
    tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    low = [replace(row, about={**row.about, "copy_bytes_per_second": synthetic_sweep.COPY / 9}) for row in rows[:2]]
    data = synthetic_sweep.write(tmp_path / "few.parquet", low)
    assert cli.main(["report", str(data)]) == 0
    page = (tmp_path / "few-report" / "report.html").read_text()
    assert "of the roofline" not in page
    assert "seem faster than the roofline: sweep again" in page
    assert '<td class="number">bad ceiling</td>' in page


def test_few_points_give_a_page_that_says_what_there_is_not(tmp_path: Path, rows: list[Row]) -> None:
    data = synthetic_sweep.write(tmp_path / "few.parquet", rows[:2])
    assert cli.main(["report", str(data)]) == 0
    page = (tmp_path / "few-report" / "report.html").read_text()
    assert "There is no forest" in page
    assert "Figure 21, predicted against observed: There is no forest" in page


@pytest.mark.usefixtures("unrendered")
def test_words_of_the_data_are_no_markup(tmp_path: Path, rows: list[Row]) -> None:
    odd = [replace(row, about={**row.about, "device": "<b>A&B</b>"}) for row in rows[:2]]
    data = synthetic_sweep.write(tmp_path / "odd.parquet", odd)
    assert cli.main(["report", str(data)]) == 0
    page = (tmp_path / "odd-report" / "report.html").read_text()
    assert "&lt;b&gt;A&amp;B&lt;/b&gt;" in page
    assert "<b>A&B</b>" not in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n", "5"], "--n: got 5, and the data have n = 4, 8, 32"),
        (["--batch", "77"], "--batch: got 77"),
        (["--compare", "nothing.csv"], "nothing.csv: reading: no such file"),
        (["--again", "nothing.parquet"], "--again: nothing.parquet"),
    ],
)
def test_mistakes_are_named(data: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(data), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "torn.parquet"
    path.write_bytes(b"PAR1 and then nothing")
    assert cli.main(["report", str(path)]) == 2
    assert "damaged, or no Parquet file" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "there are no rows" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["pandas", "sklearn"])
def test_the_extra_is_named_where_a_package_is_missing(
    package: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points.require.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["report", str(data)]) == 2
    assert "pip install -e '.[report]'" in capsys.readouterr().err


def test_the_command_loads_nothing_of_it_before_it_runs(run_python: Any) -> None:
    heavy = {"pandas", "sklearn", "matplotlib"}
    code = f"import sys, batchchol.cli.laboratory.report; print(sorted({heavy} & set(sys.modules)))"
    assert run_python("-c", code).stdout.strip() == "[]"
