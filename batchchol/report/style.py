"""What all figures share: sizes, colours, axes, and how they get to the disk. Needs matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from batchchol.files import make_folder, replace_file
from batchchol.report import wording
from batchchol.tune.choosing.winners import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Eight colours that the colour-blind tell apart, seven of them Okabe and Ito's, whose yellow cannot be seen on white.
# Markers tell the same story in grey; more lines than eight repeat the colours with other markers and dashes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C510A")
_MARKERS, _DASHES = "os^vDPX<>p*hd8H", ("-", "--")
STYLES = tuple(
    (_COLOURS[place % len(_COLOURS)], marker, _DASHES[place // len(_COLOURS)])
    for place, marker in enumerate(_MARKERS)
)
SETTINGS: Any = {"svg.hashsalt": "batchchol", "font.size": 10, "axes.titlesize": 12}
# What makes files differ from run to run stays out of them.
_FORMATS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
WIDE = (11.0, 4.4)
ONE = (9.0, 4.0)
GREY, GRID, NOTHING = "#767676", "#DDDDDD", "#EEEEEE"
BLUE, ORANGE, GREEN = (style[0] for style in STYLES[:3])
GFLOPS = "GFLOP/s (n³/3 a matrix)"
ORDER = "n, order of each matrix"
SMALL: Any = {"fontsize": 9}
# Names at the ends of lines keep this distance, in points.
_NAMES_APART = 12.5
DOTS_PER_INCH = 140


def save(paint: Callable[[], Figure], stem: Path) -> list[Path]:
    """Paint a figure and write it to `stem`.png and `stem`.svg, the same bytes each time; folders are made.

    Raises
    ------
    DataFileError
        If a file cannot be written.
    """
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        figure = paint()
        return [_write(figure, stem.with_name(f"{stem.name}.{kind}"), kind) for kind in _FORMATS]


def _write(figure: Figure, path: Path, kind: str) -> Path:
    drawing = io.BytesIO()
    figure.savefig(drawing, format=kind, metadata=_FORMATS[kind])
    make_folder(path.parent)
    replace_file(path, drawing.getvalue())
    return path


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[Any], title: str = "") -> None:
    """One line above all axes, after its title."""
    from matplotlib.lines import Line2D

    first = [(Line2D([], [], linestyle=""), f"{title}:")] if title else []
    entries = [*first, *zip(handles, map(str, labels), strict=True)]
    figure.legend(
        [handle for handle, _ in entries],
        [label for _, label in entries],
        loc="outside upper left",
        ncols=len(entries),
        frameon=False,
        columnspacing=1.2,
        handletextpad=0.5,
        **SMALL,
    )


def figure_of(size: tuple[float, float], dots: int = DOTS_PER_INCH) -> Figure:
    """A figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=dots, layout="constrained")


def panels(
    size: tuple[float, float], count: int = 2, widths: Sequence[float] | None = None, *, one_scale: bool = False
) -> tuple[Figure, Sequence[Axes]]:
    """A figure with axes beside each other, their vertical axes alike if asked."""
    figure = figure_of(size)
    return figure, figure.subplots(1, count, width_ratios=widths, sharey=one_scale, squeeze=False)[0]


def lines(axes: Axes, table: Any, styles: Mapping[Any, Mapping[str, Any]], what: str = "") -> None:
    """A line a column over the table's index; `what` stands before the columns in their names."""
    for value in table.columns:
        line = table[value].dropna()
        style = {"linewidth": 1.6, "markersize": 4.5} | dict(styles[value])
        axes.plot(line.index, line, label=f"{what} {value}".strip(), **style)


def name_lines(axes: Axes, size: float = 10) -> None:
    """Name each line at its right end, in its colour, moved up or down to clear those that end beside it."""
    figure = axes.get_figure()
    figure.draw_without_rendering()  # type: ignore[union-attr]
    named = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    known = [(np.asarray(line.get_xydata()), line) for line in named]
    ends = sorted(((points[-1], line) for points, line in known if len(points)), key=lambda end: float(end[0][1]))
    for together in grouped(ends, lambda end: float(end[0][0])).values():
        places = axes.transData.transform([point for point, _ in together])[:, 1] * 72 / figure.dpi  # type: ignore[union-attr]
        for (point, line), place, wanted in zip(together, places, spread(places, _NAMES_APART), strict=True):
            axes.annotate(
                str(line.get_label()),
                point,
                xytext=(8, wanted - place),
                textcoords="offset points",
                color=line.get_color(),
                va="center",
                annotation_clip=False,
                fontsize=size,
            )


def spread(places: ArrayLike, distance: float) -> list[float]:
    """Ascending places moved as little as it takes to be at least `distance` apart, each crowd about its middle."""
    from scipy.optimize import isotonic_regression

    wanted = np.asarray(places, dtype=np.float64)
    steps = distance * np.arange(wanted.size)
    return [float(place) for place in isotonic_regression(wanted - steps).x + steps]


def bars(axes: Axes, table: Any, across: str) -> None:
    """GFLOP/s beside each other, a group a line of the table and a colour a column, each with its number."""
    width = 0.84 / len(table.columns)
    for place, (column, (colour, *_)) in enumerate(zip(table.columns, STYLES, strict=False)):
        middle = (place - (len(table.columns) - 1) / 2) * width
        at = [line + middle for line in range(len(table))]
        drawn = axes.bar(at, table[column].to_numpy(), 0.94 * width, color=colour, label=str(column))
        axes.bar_label(drawn, fmt=wording.rate, fontsize=7.5, padding=1)
    plain(axes, across, GFLOPS)
    axes.set_xticks(range(len(table)), labels=map(str, table.index))
    axes.grid(axis="x", visible=False)


def distinct(values: Sequence[Any]) -> dict[Any, dict[str, Any]]:
    """Colours, markers and dashes of values without an order."""
    each = [{"color": colour, "marker": marker, "linestyle": dashes} for colour, marker, dashes in STYLES]
    return {value: each[place % len(each)] for place, value in enumerate(values)}


def ordered(table: Any) -> bool:
    """Whether its columns are numbers."""
    return all(isinstance(value, int) for value in table.columns)


def sequence(values: Sequence[int]) -> dict[Any, dict[str, Any]]:
    """Colours from light to dark, for values that have an order."""
    colours, last = dark(), max(len(values) - 1, 1)
    return {
        value: {"color": colours(place / last), "marker": STYLES[place % len(STYLES)][1]}
        for place, value in enumerate(values)
    }


def dark() -> Any:
    """Viridis from its green to its violet: its yellow and its light green cannot be read on white."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    whole = mpl.colormaps["viridis_r"]
    return ListedColormap([whole(0.3 + 0.7 * place / 255) for place in range(256)])


def over_orders(axes: Axes, ns: Sequence[int], label: str, *, log: bool = False, bottom: float | None = 0.0) -> None:
    """Orders on a logarithmic axis, labelled where there is room."""
    plain(axes, ORDER, label, log=log)
    octaves(axes, room(ns, 1 / 3))
    if not log:
        axes.set_ylim(bottom=bottom)


def octaves(axes: Axes, shown: Sequence[int], size: float = 9) -> None:
    """A logarithmic axis of orders with these numbers at it."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, labels=map(str, shown), fontsize=size)
    axes.minorticks_off()


def room(ns: Sequence[int], octaves: float, *, last: bool = True) -> list[int]:
    """The orders at least that many octaves from the one before; always the last, unless told otherwise."""
    shown: list[int] = []
    for n in ns:
        if not shown or math.log2(n / shown[-1]) >= octaves:
            shown.append(int(n))
    if last and shown and shown[-1] != ns[-1]:
        shown[-1 if len(shown) > 1 else 1 :] = [int(ns[-1])]
    return shown


def plain(axes: Axes, across: str, up: str, *, log: bool = False) -> None:
    """Labels, a grid behind, and no box."""
    if log:
        axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:,.10g}")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def percent(axis: Axis, sign: bool = False) -> None:
    """Shares as percentages, with a sign if asked, and a true minus sign."""

    def words(value: float, _: float) -> str:
        number = round(100 * value, 6)
        return f"{number:+.3g}%".replace("-", "−") if sign and number else f"{number:.3g}%"

    axis.set_major_formatter(words)


def cells(figure: Figure, axes: Axes, table: Any, lowest: float, label: str) -> None:
    """A table of shares as colours from `lowest` to 1, its lines upwards; grey where there is none."""
    from matplotlib.colors import Normalize

    axes.set_facecolor(NOTHING)
    drawn = axes.pcolormesh(
        table.to_numpy(), cmap="viridis", norm=Normalize(lowest, 1), edgecolors="white", linewidth=0.4
    )
    columns, rows = list(map(str, table.columns)), list(map(str, table.index))
    axes.set_xticks([place + 0.5 for place in range(len(columns))], labels=columns, fontsize=7.5)
    axes.set_yticks([place + 0.5 for place in range(len(rows))], labels=rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(drawn, ax=axes, label=label, shrink=0.95, pad=0.015)
    percent(bar.ax.yaxis)
    bar.outline.set_visible(False)
