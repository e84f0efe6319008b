"""Of `tests.times.larger_panel`: the figure."""

from __future__ import annotations

import pytest

from .larger_panel_plot import DTYPES, figure


def test_the_figure_has_a_line_for_each_ib_and_for_each_order_of_a_tile() -> None:
    pytest.importorskip("matplotlib")
    about = {"gpu": "a GPU", "date": "today", "us": "3"}
    tiles = [{"part": "tile", "nb": nb, "ib": ib, "rows": ""} for nb in ("32", "64") for ib in ("8", "16")]
    below = [{"part": "rows", "nb": "64", "ib": "16", "rows": rows} for rows in ("16", "32", "64")]
    axes = figure([{**about, **row, "dtype": dtype} for dtype in DTYPES for row in tiles + below]).axes
    assert [[line.get_label() for line in each.lines] for each in axes] == [["ib = 8", "ib = 16"]] * 2 + [
        ["nb = 64"]
    ] * 2
    assert [list(line.get_xdata()) for line in axes[2].lines] == [[16, 32, 64]]
