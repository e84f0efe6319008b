"""Of `tests.times.larger.panel`: the figure."""

from __future__ import annotations

import pytest

from ..figures.larger_panel_plot import DTYPES, figure


def test_the_figure_has_a_line_for_each_update_ib_and_order_of_a_tile() -> None:
    pytest.importorskip("matplotlib")
    about = {"gpu": "a GPU", "date": "today", "us": "3"}
    tiles = [{"part": "tile", "nb": nb, "ib": ib, "rows": ""} for nb in ("32", "64") for ib in ("8", "16")]
    below = [{"part": "rows", "nb": "64", "ib": "16", "rows": rows} for rows in ("16", "32", "64")]
    updates = [{"part": part, "nb": nb, "ib": "", "gflops": nb} for part in ("gemm", "syrk") for nb in ("32", "64")]
    axes = figure([{**about, **row, "dtype": dtype} for dtype in DTYPES for row in tiles + below + updates]).axes
    labels = [["gemm", "syrk"]] * 2 + [["ib = 8", "ib = 16"]] * 2 + [["nb = 64"]] * 2
    assert [[line.get_label() for line in each.lines] for each in axes] == labels
    assert [list(line.get_xdata()) for line in axes[4].lines] == [[16, 32, 64]]
    assert list(axes[0].lines[0].get_ydata()) == [32, 64]
