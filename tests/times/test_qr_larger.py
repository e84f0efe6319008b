"""Of `tests.times.qr_larger`: the figure."""

from __future__ import annotations

import pytest

from .qr_larger_plot import WAYS, figure


def test_the_figure_has_a_line_for_each_way() -> None:
    pytest.importorskip("matplotlib")
    about = {"dtype": "float32", "gpu": "a GPU", "date": "today"}
    rows = [{**about, "n": str(n), "way": way, "gflops": str(n)} for n in (512, 256) for way in WAYS]
    (axes,) = figure(rows).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[256, 512]] * len(WAYS)
    assert [line.get_label() for line in axes.lines] == [label for label, _ in WAYS.values()]
