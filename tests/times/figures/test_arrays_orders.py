"""Of `tests.times.figures.arrays_orders_plot`: which orders take longer than the next one, and the figure."""

from __future__ import annotations

import pytest

from .arrays_orders_plot import figure, slower


def test_an_order_is_slower_than_the_next_one_beyond_the_limit() -> None:
    assert slower({1: 1.0, 2: 1.04, 3: 1.0, 4: 0.98, 6: 0.1}) == [2]


def test_the_figure_marks_what_is_slower() -> None:
    pytest.importorskip("matplotlib")
    about = {"gpu": "a GPU", "date": "2026-11-27T10:00", "size": "2GiB", "copy_bytes_per_second": "1e9"}
    times = {"2": "3.0", "3": "2.0", "4": "4.0"}
    rows = [
        about | {"dtype": d, "n": n, "ns_per_matrix": t} for d in ("float32", "float64") for n, t in times.items()
    ]
    for axes in figure(rows).axes:
        copy, ours, marked = axes.lines
        assert list(ours.get_ydata()) == [3, 2, 4]
        assert (list(marked.get_xdata()), list(marked.get_ydata())) == ([2], [3])
        assert copy.get_ydata()[0] > 0
