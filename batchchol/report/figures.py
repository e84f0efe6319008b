"""The figures of a report, drawn from tables: those of the two studies, and of two sweeps. Needs matplotlib."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchchol.report import pivots, wording
from batchchol.report.style import (
    BLUE,
    GFLOPS,
    GREEN,
    GREY,
    NOTHING,
    ONE,
    ORANGE,
    ORDER,
    SMALL,
    WIDE,
    bars,
    cells,
    dark,
    distinct,
    legend,
    lines,
    name_lines,
    ordered,
    over_orders,
    panels,
    percent,
    plain,
    room,
    sequence,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from batchchol.report.importance import Forest, Prediction

_TALL = (11.0, 5.2)
_LOOKING_MARKERS = {"right": ">", "left": "<", "top": "^"}
_LAYOUT_COLOURS = {"chunked": BLUE, "interleaved": ORANGE, "canonical": GREEN}
# More lines than these cross each other too often to be read one by one.
_FEW_LINES = 3
_TIMES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_SHIFTS = {
    (looking, layout): shift + beside
    for looking, shift in (("right", -0.27), ("left", 0.0), ("top", 0.27))
    for layout, beside in (("chunked", -0.055), ("canonical", 0.0), ("interleaved", 0.055))
}


@dataclass(frozen=True)
class Gain:
    """By how much one of two values is faster than the other: shares by order, what to call them, what is noise.

    The colours are those of the two values' lines.
    """

    shares: Any
    words: str
    noise: float
    colours: tuple[str, str] = (BLUE, ORANGE)


def maths(table: Any, roofline: Any, gain: Gain) -> Figure:
    """The best of each accuracy class over n beside the roofline, and what fast math gains; bars of one n."""
    if len(table) == 1:
        return _one_order(table, "math", float(roofline.iloc[0]))
    figure, (left, right) = panels(WIDE)
    left.plot(roofline.index, roofline, color=GREY, linewidth=4, alpha=0.4, label="roofline")
    lines(left, table, distinct(table.columns))
    over_orders(left, table.index, GFLOPS, log=True)
    if gain.shares.empty:
        right.set_visible(False)
    else:
        _gain(right, gain)
    name_lines(left, 9)
    return figure


def levels(table: Any, name: str, gain: Gain | None = None) -> Figure:
    """The best of each value of a parameter over n, and as a share of the best of all at that n.

    Few values are lines in both panels; of more the shares are a map, the best of each n marked. Of two values one's
    `gain` over the other can take the place of the shares. Of one n there are bars.
    """
    if len(table) == 1:
        return _one_order(table, name)
    figure, (left, right) = panels(WIDE, widths=(1, 1.25))
    styles = sequence(table.columns) if ordered(table) else distinct(table.columns)
    lines(left, table, styles, name if ordered(table) else "")
    over_orders(left, table.index, GFLOPS)
    shares = pivots.of_best(table[table.notna().sum(axis=1) > 1])
    if gain is not None and not gain.shares.empty:
        _gain(right, gain)
    elif len(table.columns) > _FEW_LINES:
        _map(figure, right, shares, name)
    else:
        _shares(right, shares, styles)
        name_lines(right, 9)
    name_lines(left, 9)
    return figure


def _one_order(table: Any, name: str, roofline: float = math.nan) -> Figure:
    """The best of each value of a parameter at the only order, below the roofline if it is given."""
    figure, (axes,) = panels(ONE, 1)
    bars(axes, table.T, name)
    if not math.isnan(roofline):
        axes.axhline(roofline, color=GREY, linewidth=4, alpha=0.4)
        axes.annotate(
            "roofline", (0.01, roofline), xycoords=("axes fraction", "data"), va="bottom", color=GREY, **SMALL
        )
    return figure


def _gain(axes: Axes, gain: Gain) -> None:
    """A stem for each order, up or down from what counts as nothing."""
    axes.axhspan(-gain.noise, gain.noise, color=NOTHING, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=1)
    for sign, colour in zip((1, -1), gain.colours, strict=True):
        part = gain.shares[sign * gain.shares >= 0]
        axes.vlines(part.index, 0, part, color=colour, linewidth=2.5)
        axes.plot(part.index, part, color=colour, marker="o", markersize=5, linestyle="")
    over_orders(axes, gain.shares.index, gain.words, bottom=None)
    percent(axes.yaxis, sign=True)


def speedups(tables: Mapping[str, Any]) -> Figure:
    """How many times faster the library was than each peer, over n; a panel each accuracy class of its kernels."""
    figure, every = panels(WIDE, len(tables), one_scale=True)
    styles = distinct(_columns(tables))
    for axes, (math_class, table) in zip(every, tables.items(), strict=True):
        axes.axhline(1, color="black", linewidth=1)
        lines(axes, table, styles)
        over_orders(axes, table.index, "peer's time over the library's" if axes is every[0] else "", log=True)
        axes.set_title(f"the library with {math_class} math", loc="left", fontsize=11)
        highest = float(table.max(axis=None))
        axes.set_yticks([tick for tick in _TIMES if tick <= 1.5 * highest])
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}×")
        axes.set_ylim(bottom=min(0.8, 0.9 * float(table.min(axis=None))))
    for axes in every:
        name_lines(axes, 9)
    return figure


def every_kernel(rows: Any) -> Figure:
    """All points of one n: nb to the right, marker by looking, colour by layout, filled where straight-line code."""
    figure, (axes,) = panels(_TALL, 1)
    for (looking, layout, unroll), points in rows.groupby(["looking", "layout", "unroll"]):
        colour = _LAYOUT_COLOURS.get(layout, GREY)
        axes.scatter(
            points["nb"] + _SHIFTS.get((looking, layout), 0.0),
            points["gflops"],
            s=24,
            marker=_LOOKING_MARKERS.get(looking, "o"),
            facecolors=colour if unroll == "full" else "none",
            edgecolors=colour,
            linewidths=0.9,
            alpha=0.7,
            rasterized=True,
        )
    _name_the_best(axes, rows)
    axes.set_xticks(sorted(int(nb) for nb in rows["nb"].unique()))
    plain(axes, "nb, tile size", GFLOPS)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 1.12 * rows["gflops"].max())
    keys = _keys(rows)
    legend(figure, keys, [key.get_label() for key in keys])
    return figure


def _name_the_best(axes: Axes, rows: Any) -> None:
    first = rows.loc[rows["gflops"].idxmax()]
    place = first["nb"] + _SHIFTS.get((first["looking"], first["layout"]), 0.0), first["gflops"]
    left = place[0] <= rows["nb"].median()
    chunk = f"chunks of {first['chunk']:.0f}" if first["layout"] == "chunked" else first["layout"]
    code, rate = "straight lines" if first["unroll"] == "full" else "loops", wording.rate(first["gflops"])
    axes.scatter(*place, s=170, facecolors="none", edgecolors="black", linewidths=1.2)
    axes.annotate(
        f"{rate} GFLOP/s: nb = {first['nb']:.0f}, {first['looking']} looking, {chunk}, {code}",
        place,
        xytext=(12 if left else -12, 6),
        textcoords="offset points",
        ha="left" if left else "right",
        **SMALL,
    )


def predictions(forest: Forest) -> Figure:
    """Predicted over observed GFLOP/s, of held-out points and of held-out orders, with the ideal line."""
    parts = [("points it had not seen", forest.points_held_out)]
    if forest.orders_held_out is not None:
        parts.append(("orders it had not seen", forest.orders_held_out))
    figure, every = panels((11.0, 5.0) if len(parts) > 1 else (6.0, 5.0), len(parts))
    for axes, (name, prediction) in zip(every, parts, strict=True):
        points = _prediction(axes, prediction)
        axes.set_title(f"{name}: R² = {prediction.r2:.3f}", loc="left", fontsize=11)
    known = sorted({int(n) for n in parts[0][1].orders})
    if len(known) == 1:
        return figure
    bar = figure.colorbar(points, ax=list(every), label="n", shrink=0.8, ticks=room(known, 1 / 2))
    bar.ax.minorticks_off()
    bar.ax.yaxis.set_major_formatter(lambda value, place: f"{value:.0f}")
    if bar.solids is not None:
        bar.solids.set_alpha(1)
    return figure


def _prediction(axes: Axes, prediction: Prediction) -> Any:
    from matplotlib.colors import LogNorm

    highest = 1.05 * max(prediction.observed.max(), prediction.predicted.max())
    axes.plot([0, highest], [0, highest], color="black", linewidth=1, zorder=3)
    axes.annotate("ideal", (highest * 0.96, highest * 0.97), ha="right", va="bottom", **SMALL)
    lowest, largest = max(int(prediction.orders.min()), 1), int(prediction.orders.max())
    points = axes.scatter(
        prediction.observed,
        prediction.predicted,
        c=prediction.orders,
        cmap=dark(),
        norm=LogNorm(lowest, max(largest, lowest + 1)),
        s=6,
        alpha=0.55,
        linewidths=0,
        rasterized=True,
    )
    plain(axes, f"observed {GFLOPS}", "predicted GFLOP/s")
    axes.set(xlim=(0, highest), ylim=(0, highest), aspect="equal")
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.10g}")
    return points


def _shares(axes: Axes, shares: Any, styles: Mapping[Any, Mapping[str, Any]]) -> None:
    """Lines of shares of the best."""
    lines(axes, shares, styles)
    # In steps of a fifth: small differences stay visible, and large ones do not look like everything.
    lowest = math.floor(shares.min(axis=None) * 5) / 5
    over_orders(axes, shares.index, "share of the best at this n", bottom=lowest - 0.01)
    axes.set_ylim(top=1.02)
    percent(axes.yaxis)


def _map(figure: Figure, axes: Axes, shares: Any, name: str) -> None:
    """Shares of the best as colours, a column an order; the best of each has a dot."""
    lowest = min(math.floor(shares.min(axis=None) * 5) / 5, 0.8)
    cells(figure, axes, shares.T, lowest, "share of the best at this n (dot: the best)")
    for column, value in enumerate(pivots.winners(shares)):
        axes.plot(column + 0.5, list(shares.columns).index(value) + 0.5, color="black", marker="o", markersize=4)
    axes.set(xlabel=ORDER, ylabel=name)


def _keys(rows: Any) -> list[Any]:
    """What marker, colour and fill mean, of those in the figure."""
    from matplotlib.lines import Line2D

    def key(label: str, marker: str, colour: str, filled: bool) -> Line2D:
        fill = colour if filled else "none"
        return Line2D([], [], linestyle="", marker=marker, label=label, color=colour, markerfacecolor=fill)

    lookings = [key(f"{name} looking", mark, GREY, False) for name, mark in _LOOKING_MARKERS.items()]
    layouts = [
        key(name, "s", colour, True) for name, colour in _LAYOUT_COLOURS.items() if name in set(rows["layout"])
    ]
    words = {"full": "straight-line code", "tiles": "loops over tiles"}
    fills = [key(words[name], "o", "#333333", name == "full") for name in words if name in set(rows["unroll"])]
    return [*lookings, *layouts, *fills]


def by_family(tables: Mapping[str, Any], name: str) -> Figure:
    """The best of each value of a parameter over n, a panel a family of kernels, on one scale; bars of one n."""
    first = next(iter(tables.values()))
    known = _columns(tables)
    known = sorted(known) if ordered(first) else known
    if len({n for table in tables.values() for n in table.index}) == 1:
        return _families_of_one_order(tables, known, name)
    figure, every = panels(WIDE, len(tables), one_scale=True)
    styles = sequence(known) if ordered(first) else distinct(known)
    for axes, (family, table) in zip(every, tables.items(), strict=True):
        lines(axes, table, styles, name if ordered(table) else "")
        over_orders(axes, table.index, GFLOPS if axes is every[0] else "")
        axes.set_title(f"family {family}", loc="left", fontsize=11)
    # All have one scale: only now is its top known.
    every[0].autoscale(axis="y")
    every[0].set_ylim(bottom=0)
    for axes in every:
        name_lines(axes, 9)
    return figure


def _columns(tables: Mapping[str, Any]) -> list[Any]:
    return list(dict.fromkeys(value for table in tables.values() for value in table.columns))


def _families_of_one_order(tables: Mapping[str, Any], known: Sequence[Any], name: str) -> Figure:
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
