"""What figures show of a data set that has only one order: values beside each other, with their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pandas = pytest.importorskip("pandas", reason="reports need pip install -e '.[report]'")
pytest.importorskip("matplotlib", reason="reports need pip install -e '.[report]'")

from batchchol.report import figure_list, figures  # noqa: E402
from batchchol.report.figures import Gain  # noqa: E402
from batchchol.report.importance import Forest, Prediction  # noqa: E402


def shown(figure: Any) -> tuple[list[str], list[list[float]], list[str]]:
    """The values along its only axis, the heights of its bars, and the numbers that are written above them."""
    (axes,) = figure.axes
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    return ticks, [[bar.get_height() for bar in bars] for bars in axes.containers], [t.get_text() for t in axes.texts]


def test_values_of_a_parameter_are_bars() -> None:
    table = pandas.DataFrame({1: [10.0], 2: [2345.6]}, index=[100])
    assert shown(figures.levels(table, "nb")) == (["1", "2"], [[10.0, 2345.6]], ["10", "2,346"])
    gain = Gain(pandas.Series([0.5], index=[100]), "gain", 0.02)
    assert shown(figures.levels(table, "nb", gain))[1] == [[10.0, 2345.6]]


def test_the_roofline_is_above_the_bars() -> None:
    table = pandas.DataFrame({"fast": [20.0], "ieee": [10.0]}, index=[100])
    figure = figures.maths(table, pandas.Series([80.0], index=[100]), Gain(table["fast"] - 19, "", 0.02))
    assert shown(figure) == (["fast", "ieee"], [[20.0, 10.0]], ["20", "10", "roofline"])
    assert list(figure.axes[0].lines[0].get_ydata()) == [80.0, 80.0]


def test_families_are_beside_each_other_and_a_value_that_one_lacks_has_no_bar() -> None:
    tables = {
        "thread": pandas.DataFrame({4: [40.0], 8: [80.0]}, index=[100]),
        "shared": pandas.DataFrame({2: [2.0], 8: [8.0]}, index=[100]),
    }
    figure = figures.by_family(tables, "nb")
    ticks, heights, numbers = shown(figure)
    assert ticks == ["2", "4", "8"]
    np.testing.assert_equal(heights, [[np.nan, 40.0, 80.0], [2.0, np.nan, 8.0]])
    assert [number for number in numbers if number] == ["40", "80", "2", "8"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["family:", "thread", "shared"]
    two = {family: pandas.concat([table, table.set_axis([20])]) for family, table in tables.items()}
    assert len(figures.by_family(two, "nb").axes) == 2


def test_words_have_one_order_in_all_figures() -> None:
    rows = pandas.DataFrame({"n": 100, "gflops": 1.0, "looking": ["left", "top", "right"]})
    assert list(figure_list._table(rows, "looking").columns) == ["right", "left", "top"]
    rows = pandas.DataFrame({"n": 100, "gflops": 1.0, "layout": ["canonical", "chunked", "interleaved"]})
    tables = dict.fromkeys(("thread", "shared"), figure_list._table(rows, "layout"))
    assert shown(figures.by_family(tables, "layout"))[0] == ["chunked", "interleaved", "canonical"]


@pytest.mark.parametrize(("orders", "axes"), [([100, 100], 1), ([50, 100], 2)])
def test_orders_have_a_scale_where_there_are_several(orders: list[int], axes: int) -> None:
    held = Prediction(np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.array(orders))
    forest = Forest(3, 2, 2, 1.0, held, None, None, ())
    assert len(figures.predictions(forest).axes) == axes
