"""Figures that the 2017 study does not have: families beside each other, a rule, and two sweeps. Needs matplotlib."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchchol.report.style import (
    BLUE,
    GFLOPS,
    GREY,
    NOTHING,
    ONE,
    ORANGE,
    SMALL,
    WIDE,
    bars,
    cells,
    distinct,
    legend,
    lines,
    ordered,
    over_orders,
    panels,
    percent,
    plain,
    sequence,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def by_family(tables: Mapping[str, Any], name: str) -> Figure:
    """The best of each value of a parameter over n, a panel a family of kernels, on one scale; bars of one n."""
    known = list(dict.fromkeys(value for table in tables.values() for value in table.columns))
    first = next(iter(tables.values()))
    known = sorted(known) if ordered(first) else known
    if len({n for table in tables.values() for n in table.index}) == 1:
        return _one_order(tables, known, name)
    figure, every = panels(WIDE, len(tables), one_scale=True)
    styles = sequence(known) if ordered(first) else distinct(known)
    for axes, (family, table) in zip(every, tables.items(), strict=True):
        lines(axes, table, styles)
        over_orders(axes, table.index, GFLOPS if axes is every[0] else "")
        axes.set_title(f"family {family}", loc="left", fontsize=11)
    handles = {label: line for axes in every for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    legend(figure, [handles[str(value)] for value in known], known, name)
    return figure


def _one_order(tables: Mapping[str, Any], known: Sequence[Any], name: str) -> Figure:
    """The best of each value at the only order, the families beside each other."""
    from pandas import DataFrame

    figure, (axes,) = panels(ONE, 1)
    bars(axes, DataFrame({family: table.iloc[0] for family, table in tables.items()}).reindex(known), name)
    legend(figure, *axes.get_legend_handles_labels(), "family")
    return figure


def rule(table: Any, most: int) -> Figure:
    """The best of each tile size and chunk as a share of the best chunk there, and where a rule ends.

    `table` has a line a tile size, a column a chunk: shares; `most` is the bound of chunk · nb².
    """
    figure, (axes,) = panels((7.5, 4.4), 1)
    lowest = math.floor(5 * table.min(axis=None)) / 5
    cells(figure, axes, table, lowest, "share of the best chunk")
    chunks = [int(chunk) for chunk in table.columns]
    steps = [sum(chunk * nb * nb <= most for chunk in chunks) for nb in table.index]
    axes.stairs(steps, range(len(table) + 1), orientation="horizontal", color=ORANGE, linewidth=3, baseline=None)
    for line, column in itertools.product(range(len(table)), range(len(chunks))):
        share = table.iloc[line, column]
        if not math.isnan(share):
            colour = "black" if share > (1 + lowest) / 2 else "white"
            axes.text(column + 0.5, line + 0.5, f"{share:.0%}", ha="center", va="center", color=colour, fontsize=8)
    axes.set(xlabel="chunk", ylabel="nb, tile size")
    return figure


def stability(table: Any, ratios: Any, bound: float) -> Figure:
    """By how much the winner of either sweep misses the best of the other; and how times of all points differ."""
    figure, (left, right) = panels(WIDE, widths=(1.6, 1))
    left.axhspan(0, bound, color=NOTHING, linewidth=0)
    sides = {
        "first_in_second": "the first's winner in the second sweep",
        "second_in_first": "the second's in the first",
    }
    markers = {"fast": "o", "ieee": "s"}
    for (column, label), colour in zip(sides.items(), (BLUE, ORANGE), strict=True):
        for math_class, rows in table.groupby("math"):
            left.plot(
                rows["n"], rows[column], linestyle="", color=colour, marker=markers.get(math_class, "^"),
                markersize=6, markerfacecolor="none", label=f"{label}, {math_class}",
            )  # fmt: skip
    over_orders(left, sorted(table["n"].unique()), "behind the best of the other sweep", bottom=None)
    left.set_ylim(-0.0015, max(1.3 * bound, 1.05 * table[list(sides)].max(axis=None)))
    percent(left.yaxis)
    place, middle = (1, bound), ("axes fraction", "data")
    left.annotate(f"within {bound:.0%}", place, xycoords=middle, ha="right", va="bottom", color=GREY, **SMALL)
    changes = ratios - 1
    edge = max(float(changes.abs().quantile(0.99)), 0.001)
    right.hist(changes, bins=60, range=(-edge, edge), color=BLUE)
    right.locator_params(axis="x", nbins=5)
    right.axvline(0, color="black", linewidth=1)
    plain(right, "by how much the second sweep's time differs", "points")
    percent(right.xaxis, sign=True)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, **SMALL)
    return figure
