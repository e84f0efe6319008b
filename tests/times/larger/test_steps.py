"""Of `tests.times.larger.steps`: what the times of tiles say, and the figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ..figures.larger_steps_plot import figure
from ..figures.larger_timeline_plot import figure as timeline
from .steps import _covered, _panel_times, _spent

# Begin and end, cycles of 2 ns: begin, loaded, updated, its factor there, solved for, stored; waited.
TILES = [
    [1000, 1100, 0, 0, 0, 0, 0, 0, 0],
    [1100, 1500, 500, 525, 675, 680, 690, 700, 25],
    [1200, 1800, 100, 125, 250, 300, 350, 400, 0],
]


def test_phases_and_what_no_update_hides() -> None:
    """The first tile takes 100 ns; then two tasks, whose updates end at 450 and 500 of 800 ns, and overlap."""
    spent, bare, whole = _panel_times(np.array(TILES, np.uint64))
    assert whole == pytest.approx(800e-9)
    np.testing.assert_allclose(spent, np.array([50, 25, 250, 55, 60, 60]) * 2e-9)
    # Updates run from 1200 to 1450, and from 1250 to 1500.
    assert bare == pytest.approx(500e-9)


def test_what_updates_beside_panels_hide() -> None:
    """Of 800 ns 500 are bare: a quarter of both beside an update of 600 ns, all behind one."""
    panel, update = np.array(TILES, np.uint64), 600e-9
    wait: list[Any] = [(update, False), (None, True)]
    assert _spent([(panel, False)])[1:] == pytest.approx((500e-9, 800e-9))
    assert _spent([*wait, (panel, True)])[1:] == pytest.approx((500e-9, 1400e-9))
    assert _spent([*wait, (update, False), (panel, True)])[1:] == pytest.approx((125e-9, 1400e-9))


def test_overlapping_intervals_count_once() -> None:
    assert _covered(np.array([5.0, 0.0, 1.0]), np.array([6.0, 3.0, 2.0])) == 4


def test_the_figure_has_what_was_measured() -> None:
    pytest.importorskip("matplotlib")
    about = {"n": "1024", "nb": "512", "gpu": "a GPU", "date": "today"}
    rows = [
        {**about, "part": part, "dtype": dtype, "looking": looking, "at": at, "who": who, "gflops": "5"}
        for dtype in ("float32", "float64")
        for part, who, at in (("update", "cublas", "512"), ("bound", "cublas", ""), ("whole", "batchchol", ""))
        for looking in ("left", "right")
    ]
    rows += [{**row, "who": "cusolver, lower", "gflops": "4"} for row in rows if row["part"] == "whole"]
    single, double = figure(rows).axes
    for axes in (single, double):
        assert [line.get_ydata()[0] for line in axes.lines] == [5, 5, 5, 5, 5, 4]


def test_the_timeline_has_a_bar_for_each_call_on_its_stream() -> None:
    pytest.importorskip("matplotlib")
    about = {"dtype": "float64", "n": "1024", "nb": "512", "gpu": "a GPU", "date": "today"}
    calls = [("plain", "first", "panel", 0, 500), ("plain", "first", "syrk", 500, 550)]
    calls += [("ahead", "first", "gemm", 0, 500), ("ahead", "beside", "panel", 100, 400)]
    names = ("variant", "stream", "what", "begin_us", "end_us")
    plain, ahead = timeline([about | dict(zip(names, map(str, call), strict=True)) for call in calls]).axes
    assert [axes.get_title(loc="left") for axes in (plain, ahead)] == ["plain: 0.55 ms", "ahead: 0.50 ms"]
    assert [tick.get_text() for tick in ahead.get_yticklabels()] == ["beside stream", "first stream"]
    assert [text.get_text() for text in ahead.texts] == ["panel", "gemm"]
    assert [text.get_text() for text in plain.texts] == ["panel"], "a short bar has no room for its name"
