"""Of `tests.times.figures.course_batches_plot`: the figure."""

from __future__ import annotations

import pytest

from .course_batches_plot import FAMILIES, figure


def test_a_line_for_each_order_has_the_fastest_of_each_batch() -> None:
    pytest.importorskip("matplotlib")
    about = {"status": "correct", "device": "a GPU", "date": "2026-11-27T10:00"}
    points = [(n, batch, seconds) for n in (20, 30) for batch in (1024, 4096) for seconds in (batch * 1e-8, 1.0)]
    rows = [
        about | {"family": family, "n": n, "batch": batch, "median_seconds": seconds}
        for family in FAMILIES
        for n, batch, seconds in points
    ]
    for axes in figure(rows).axes:
        assert [line.get_label() for line in axes.lines] == ["n = 20", "n = 30"]
        assert [list(line.get_xdata()) for line in axes.lines] == [[1024, 4096]] * 2
        assert axes.lines[0].get_ydata() == pytest.approx(20**3 / 3 / 10)
