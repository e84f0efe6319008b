"""The plots: what is drawn, that it can be read, and that the same points give the same files."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchchol.errors import BatchcholError
from batchchol.report import gflops_plot
from batchchol.report.gflops_plot import Panel, Point, draw, draw_panels
from batchchol.report.style import spread

POINTS = [
    Point("fast", 4, 2.0, 8.0),
    Point("numpy", 4, 0.1, 6.0),
    Point("fast", 16, 20.0, 40.0),
    Point("faster", 16, 25.0, 40.0),
    Point("numpy", 16, 0.5, 30.0),
]


@pytest.fixture(autouse=True)
def needs_matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install -e '.[plots]'")


def test_both_formats_are_written_and_nothing_else(tmp_path: Path) -> None:
    png, svg = draw(POINTS, tmp_path / "new" / "a.b", title="T")
    assert (png.name, svg.name) == ("a.b.png", "a.b.svg")
    assert sorted((tmp_path / "new").iterdir()) == [png, svg]
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_points_give_the_same_bytes_without_a_date(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in draw(POINTS, tmp_path / "a", title="T", subtitle="S")]
    again = [path.read_bytes() for path in draw(POINTS, tmp_path / "b", title="T", subtitle="S")]
    other = [path.read_bytes() for path in draw(POINTS[:-1], tmp_path / "c", title="T", subtitle="S")]
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert not any(word in content for content in first for word in (b"dc:date", b"Matplotlib v"))


def test_a_roofline_that_is_not_known_is_not_drawn() -> None:
    axes = gflops_plot._figure([*POINTS, Point("fast", 64, 30.0, math.nan)], "T", "").axes[0]
    assert [x for x, _ in np.asarray(axes.lines[-1].get_xydata())] == [4, 16]
    axes = gflops_plot._figure([replace(point, roofline_gflops=math.nan) for point in POINTS], "T", "").axes[0]
    assert len(axes.lines) == 3
    assert "roofline" not in {text.get_text() for text in axes.texts}


def test_a_line_for_each_label_and_the_highest_roofline_of_each_n() -> None:
    axes = gflops_plot._figure(POINTS, "T", "S").axes[0]
    lines = [[(x, y) for x, y in np.asarray(line.get_xydata())] for line in axes.lines]
    assert lines == [
        [(4, 2.0), (16, 20.0)],
        [(4, 0.1), (16, 0.5)],
        [(16, 25.0)],
        [(4, 8.0), (16, 40.0)],
    ]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert {"fast", "faster", "numpy", "roofline", "S"} <= {text.get_text() for text in axes.texts}
    assert "GFLOP/s" in axes.get_ylabel()
    assert axes.get_title(loc="left") == "T"


def test_lines_differ_by_more_than_colour() -> None:
    many = [Point(f"label {index}", n, 1.0 + index, 50.0) for index in range(7) for n in (4, 8)]
    lines = gflops_plot._figure(many, "", "").axes[0].lines[:-1]
    assert len({line.get_color() for line in lines}) == 7
    assert len({line.get_marker() for line in lines}) == 7


def test_labels_of_lines_that_meet_do_not_overlap() -> None:
    meeting = [Point(f"label {index}", n, 10.0 + index / 100, 50.0) for index in range(5) for n in (4, 8)]
    figure = gflops_plot._figure(meeting, "", "")
    figure.draw_without_rendering()
    labels = [text for text in figure.axes[0].texts if text.get_text().startswith("label")]
    boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.y0)
    assert len(boxes) == 5
    assert all(lower.y1 <= upper.y0 for lower, upper in itertools.pairwise(boxes))
    # Nor do they leave the page.
    assert max(box.x1 for box in boxes) <= figure.bbox.x1


@given(places=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12).map(sorted))
def test_spreading_keeps_order_distance_and_middle(places: list[float]) -> None:
    moved = spread(places, 13.0)
    assert all(upper - lower >= 13.0 - 1e-6 for lower, upper in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(places), abs=1e-6)


def test_spreading_leaves_alone_what_is_apart() -> None:
    assert spread([0.0, 20.0, 40.0], 13.0) == [0.0, 20.0, 40.0]
    assert spread([0.0, 20.0, 20.0], 13.0) == [0.0, 13.5, 26.5]


def test_a_missing_matplotlib_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BatchcholError, match=r"needs matplotlib, .*: pip install -e '\.\[plots\]'"):
        draw(POINTS, tmp_path / "a", title="")


def test_no_points_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchcholError, match="points: got none"):
        draw([], tmp_path / "a", title="")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BatchcholError, match="file: folder: there is a file of this name"):
        draw(POINTS, tmp_path / "file" / "a", title="")


PANELS = [
    Panel(
        "small",
        (Point("ours", 4, 2.0, 8.0), Point("theirs", 4, 1.0, 8.0, "peer"), Point("old", 4, 1.5, 0.0, "reference")),
    ),
    Panel("large", (Point("theirs", 4, 3.0, 9.0, "peer"), Point("ours", 4, 5.0, 9.0))),
]


def test_panels_beside_each_other_draw_a_label_alike_and_mark_what_it_is() -> None:
    figure = gflops_plot._panels_figure(PANELS, "T", "who is absent " * 40, 4.5)
    small, large = figure.axes
    assert [axes.get_title(loc="left") for axes in (small, large)] == ["small", "large"]
    ours, theirs, old, roofline = small.lines
    assert [line.get_linestyle() for line in (ours, theirs, old)] == ["-", "--", ":"]
    assert [line.get_color() for line in (theirs, ours)] == [line.get_color() for line in large.lines[:2]]
    assert old.get_markerfacecolor() == "white"
    assert list(np.asarray(roofline.get_ydata())) == [8.0], "a reference has none"
    assert small.get_ylim() == large.get_ylim()
    assert {"ours", "theirs", "old", "roofline"} <= {text.get_text() for text in small.texts}
    assert len(figure.get_supxlabel().splitlines()) > 1, "a long caption is broken into lines"


def test_panels_are_written_in_both_formats_and_none_is_empty(tmp_path: Path) -> None:
    png, svg = draw_panels(PANELS, tmp_path / "p", title="T", caption="C")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    with pytest.raises(BatchcholError, match="panels: got one without points"):
        draw_panels([*PANELS, Panel("empty", ())], tmp_path / "q", title="T")
