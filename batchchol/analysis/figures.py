"""The figures of the 2017 study, drawn from a data set. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchchol.analysis import best
from batchchol.plots import SETTINGS, STYLES, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from batchchol.analysis.forest import Forest, Prediction

_WIDE, _TALL = (11.0, 4.3), (11.0, 5.2)
_DOTS_PER_INCH = 140
_GREY, _GRID = "#767676", "#DDDDDD"
_BLUE, _ORANGE = STYLES[0][0], STYLES[1][0]
_GFLOPS = "GFLOP/s (n³/3 a matrix)"
_ORDER = "n, order of each matrix"
_LOOKING_MARKERS = {"right": ">", "left": "<", "top": "^"}
_LAYOUT_COLOURS = {"chunked": _BLUE, "interleaved": _ORANGE, "canonical": STYLES[2][0]}


@dataclass(frozen=True)
class Drawing:
    """A figure on disk; `number` is that of its model in the study, 0 if it has none."""

    number: int
    title: str
    caption: str
    png: Path
    svg: Path


def draw(number: int, name: str, title: str, caption: str, folder: Path, paint: Callable[[], Figure]) -> Drawing:
    """Paint a figure and write it to `folder`, as PNG and SVG.

    Raises
    ------
    BatchcholError
        If it cannot be written.
    """
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        png, svg = write(paint(), folder / f"figure-{number:02}-{name}")
    return Drawing(number, title, caption, png, svg)


def maths(table: Any, roofline: Any) -> Figure:
    """The best of each accuracy class over n beside the roofline, and the classes' ratio."""
    figure, (left, right) = _panels(_WIDE)
    _lines(left, table, _distinct(table.columns))
    left.plot(roofline.index, roofline, color=_GREY, linewidth=3, alpha=0.5, label="roofline")
    _finish(left, table.index, _GFLOPS, log=True)
    left.legend(frameon=False, fontsize=9)
    faster = best.ratio(table, "fast", "ieee")
    right.axhline(1, color=_GREY, linewidth=1)
    right.plot(faster.index, faster, color=_BLUE, marker="o", markersize=4)
    _finish(right, table.index, "best with fast math over best with ieee", bottom=None)
    right.yaxis.set_major_formatter(lambda value, place: f"{value:.4g}")
    return figure


def levels(table: Any, name: str) -> Figure:
    """The best of each value of a parameter over n, and as a share of the best of all at that n."""
    figure, (left, right) = _panels(_WIDE)
    numeric = all(isinstance(value, int) for value in table.columns)
    styles = _sequence(table.columns) if numeric else _distinct(table.columns)
    _lines(left, table, styles)
    _finish(left, table.index, _GFLOPS)
    shares = best.of_best(table)
    _lines(right, shares, styles)
    # In steps of a fifth: what differs little is to be seen, and what differs much not to look like all.
    _finish(
        right, table.index, "share of the best at this n", bottom=math.floor(shares.min(axis=None) * 5) / 5 - 0.01
    )
    right.set_ylim(top=1.02)
    right.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, title=name, loc="outside right center", frameon=False, fontsize=9)
    return figure


def speedups(table: Any) -> Figure:
    """How many times faster the library was than each peer, over n."""
    figure = _figure((9.0, 4.6))
    axes = figure.add_subplot()
    axes.axhline(1, color=_GREY, linewidth=1)
    _lines(axes, table, _distinct(table.columns))
    _finish(axes, table.index, "peer's time over the library's", log=True)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    return figure


def every_kernel(rows: Any) -> Figure:
    """All points of one n: nb to the right, marker by looking, colour by layout, filled where straight-line code."""
    figure = _figure(_TALL)
    axes = figure.add_subplot()
    shifts = {"right": -0.22, "left": 0.0, "top": 0.22}
    for (looking, layout, unroll), points in rows.groupby(["looking", "layout", "unroll"]):
        colour = _LAYOUT_COLOURS.get(layout, _GREY)
        axes.scatter(
            points["nb"] + shifts.get(looking, 0.0),
            points["gflops"],
            s=22,
            marker=_LOOKING_MARKERS.get(looking, "o"),
            facecolors=colour if unroll == "full" else "none",
            edgecolors=colour,
            linewidths=0.8,
            alpha=0.75,
            rasterized=True,
        )
    axes.set_xticks(sorted(int(nb) for nb in rows["nb"].unique()))
    _plain(axes, "nb, tile size", _GFLOPS)
    figure.legend(handles=_keys(rows), loc="outside right center", frameon=False, fontsize=9)
    return figure


def predictions(forest: Forest) -> Figure:
    """Predicted over observed GFLOP/s, of held-out points and of held-out orders, with the ideal line."""
    parts = [("held-out points", forest.points_held_out)]
    if forest.orders_held_out is not None:
        parts.append(("held-out orders", forest.orders_held_out))
    figure = _figure((11.0, 5.4) if len(parts) > 1 else (6.0, 5.4))
    every = figure.subplots(1, len(parts), squeeze=False)[0]
    for axes, (name, prediction) in zip(every, parts, strict=True):
        points = _prediction(axes, prediction)
        axes.set_title(f"{name}: R² = {prediction.r2:.3f}", loc="left", fontsize=11)
    figure.colorbar(points, ax=list(every), label="n", shrink=0.8)
    return figure


def _prediction(axes: Axes, prediction: Prediction) -> Any:
    highest = 1.05 * max(prediction.observed.max(), prediction.predicted.max())
    axes.plot([0, highest], [0, highest], color=_GREY, linewidth=1.2)
    axes.annotate("ideal", (highest * 0.97, highest * 0.97), color=_GREY, ha="right", fontsize=9, va="bottom")
    points = axes.scatter(
        prediction.observed,
        prediction.predicted,
        c=prediction.orders,
        cmap="viridis_r",
        s=7,
        alpha=0.6,
        linewidths=0,
        rasterized=True,
    )
    _plain(axes, f"observed {_GFLOPS}", "predicted")
    axes.set(xlim=(0, highest), ylim=(0, highest), aspect="equal")
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.10g}")
    return points


def _keys(rows: Any) -> list[Any]:
    """What marker, colour and fill mean, of what there is to see."""
    from matplotlib.lines import Line2D

    def key(label: str, marker: str, colour: str, filled: bool) -> Line2D:
        fill = colour if filled else "none"
        return Line2D([], [], linestyle="", marker=marker, label=label, color=colour, markerfacecolor=fill)

    lookings = [key(f"{name} looking", mark, _GREY, False) for name, mark in _LOOKING_MARKERS.items()]
    layouts = [
        key(name, "s", colour, True) for name, colour in _LAYOUT_COLOURS.items() if name in set(rows["layout"])
    ]
    words = {"full": "straight-line code", "tiles": "loops over tiles"}
    fills = [key(words[name], "o", "#333333", name == "full") for name in words if name in set(rows["unroll"])]
    return [*lookings, *layouts, *fills]


def _figure(size: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")


def _panels(size: tuple[float, float]) -> tuple[Figure, Sequence[Axes]]:
    figure = _figure(size)
    return figure, figure.subplots(1, 2)


def _lines(axes: Axes, table: Any, styles: Mapping[Any, Mapping[str, Any]]) -> None:
    for value in table.columns:
        line = table[value].dropna()
        axes.plot(line.index, line, label=str(value), linewidth=1.6, markersize=4, **styles[value])


def _distinct(values: Sequence[Any]) -> dict[Any, dict[str, Any]]:
    each = [{"color": colour, "marker": marker, "linestyle": dashes} for colour, marker, dashes in STYLES]
    return {value: each[place % len(each)] for place, value in enumerate(values)}


def _sequence(values: Sequence[int]) -> dict[Any, dict[str, Any]]:
    """Colours from light to dark, for values that have an order."""
    import matplotlib as mpl

    colours = mpl.colormaps["viridis_r"]
    last = max(len(values) - 1, 1)
    return {
        value: {"color": colours(0.12 + 0.88 * place / last), "marker": STYLES[place % len(STYLES)][1]}
        for place, value in enumerate(values)
    }


def _finish(axes: Axes, ns: Sequence[int], label: str, *, log: bool = False, bottom: float | None = 0.0) -> None:
    """Orders on a logarithmic axis, as many as there is room for."""
    shown: list[int] = []
    for n in ns:
        if not shown or math.log2(n / shown[-1]) >= 1 / 3:
            shown.append(int(n))
    _plain(axes, _ORDER, label, log=log)
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, labels=map(str, shown), fontsize=9)
    axes.minorticks_off()
    if not log:
        axes.set_ylim(bottom=bottom)


def _plain(axes: Axes, across: str, up: str, *, log: bool = False) -> None:
    if log:
        axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:,.10g}")
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
