"""The figures of LU and QR past one multiprocessor."""

from __future__ import annotations

import pytest

from .steps_plot import STEPS, figure


@pytest.mark.parametrize("operation", STEPS)
def test_the_figure_has_a_line_for_each_way(operation: str) -> None:
    pytest.importorskip("matplotlib")
    ways, about = STEPS[operation].ways, {"gpu": "a GPU", "date": "today", "gflops": "3"}
    rows = [{**about, "dtype": "float32", "n": str(n), "way": way} for n in (512, 256) for way in ways]
    (axes,) = figure(operation, [*rows, {**about, "dtype": "float64", "n": "1", "way": next(iter(ways))}]).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[256, 512]] * len(ways)
    assert [line.get_label() for line in axes.lines] == list(ways.values())
