"""GFLOP/s over n as a plot with the roofline drawn in. Needs matplotlib."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchchol.errors import BatchcholError, install
from batchchol.files import make_folder, replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind tell apart; markers and dashes tell the same story in grey.
STYLES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "-"),
    ("#009E73", "^", "--"),
    ("#CC79A7", "v", "--"),
    ("#E69F00", "D", "-."),
    ("#56B4E9", "P", "-."),
    ("#000000", "X", ":"),
    ("#8C510A", "<", "-"),
    ("#762A83", ">", "--"),
    ("#1B7837", "p", "-."),
    ("#67001F", "*", ":"),
    ("#4575B4", "h", "-"),
)
_KINDS: dict[str, dict[str, Any]] = {
    "own": {"linestyle": "-", "linewidth": 2.2},
    "peer": {"linestyle": "--", "linewidth": 1.4, "markersize": 4},
    "reference": {"linestyle": ":", "linewidth": 1.0, "markersize": 4, "markerfacecolor": "white", "alpha": 0.8},
}
_ROOFLINE_COLOUR = "#767676"
_SIZE_INCHES, _DOTS_PER_INCH = (9.0, 5.4), 160
# A panel, and how much of the caption there is to an inch.
_PANEL_INCHES, _CAPTION_CHARACTERS, _CAPTION_LINE_INCHES = (6.4, 6.2), 15.5, 0.16
# Labels at the ends of the lines keep this distance, in points.
_LABEL_SPACING = 13.0
# What makes files differ from run to run stays out of them.
_FORMATS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
SETTINGS: Any = {"svg.hashsalt": "batchchol", "font.size": 10, "axes.titlesize": 12}


@dataclass(frozen=True)
class Point:
    """One measurement: `label` is its line, `roofline_gflops` what the machine would allow at this n.

    In panels its `kind` decides how it is drawn: "own" solid, a "peer" dashed, and a "reference", which was measured
    elsewhere or earlier, dotted, thin and hollow; a reference has no roofline.
    """

    label: str
    n: int
    gflops: float
    roofline_gflops: float
    kind: str = "own"


@dataclass(frozen=True)
class Panel:
    """One pair of axes beside others."""

    title: str
    points: tuple[Point, ...]


def require_matplotlib(extra: str = "plots") -> None:
    """Refuse to go on without matplotlib, which is in `extra` with whatever else the caller needs.

    Raises
    ------
    BatchcholError
        If it is not installed; says how to install it.
    """
    if find_spec("matplotlib") is None:
        raise BatchcholError(f"plots need matplotlib, which is not installed: {install(extra)}")


def draw(points: Iterable[Point], stem: Path, *, title: str, subtitle: str = "") -> list[Path]:
    """Draw GFLOP/s over n, one line a label, in the order of their first points, with the roofline above.

    Parameters
    ----------
    points : iterable of Point
        At each n the highest of their rooflines is drawn, but for those that are NaN: not known.
    stem : Path
        Where to: ".png" and ".svg" are added, folders are made. The same points give the same bytes.
    title, subtitle : str
        Above the axes.

    Returns
    -------
    list of Path
        The PNG and the SVG file.

    Raises
    ------
    BatchcholError
        If matplotlib is not installed, there are no points, or a file cannot be written.
    """
    require_matplotlib()
    import matplotlib as mpl

    everything = list(points)
    if not everything:
        raise BatchcholError("points: got none, expected at least one to draw")
    with mpl.rc_context(SETTINGS):
        figure = _figure(everything, title, subtitle)
        return write(figure, stem)


def draw_panels(panels: Sequence[Panel], stem: Path, *, title: str, caption: str = "") -> list[Path]:
    """Draw panels as `draw` does, beside each other over the same GFLOP/s; a label is the same line in each.

    Parameters
    ----------
    panels : sequence of Panel
    stem : Path
        Where to, as in `draw`.
    title, caption : str
        Above and below all of them.

    Raises
    ------
    BatchcholError
        As `draw`.
    """
    require_matplotlib()
    import matplotlib as mpl

    if not panels or not all(panel.points for panel in panels):
        raise BatchcholError("panels: got one without points, expected at least one point to draw in each")
    with mpl.rc_context(SETTINGS):
        figure = _panels_figure(panels, title, caption)
        return write(figure, stem)


def _panels_figure(panels: Sequence[Panel], title: str, caption: str) -> Figure:
    from matplotlib.figure import Figure

    width, height = _PANEL_INCHES
    lines = textwrap.wrap(caption, round(width * len(panels) * _CAPTION_CHARACTERS)) if caption else []
    size = (width * len(panels), height + _CAPTION_LINE_INCHES * len(lines))
    figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title, x=0.005, ha="left", fontsize=13)
    if lines:
        figure.supxlabel("\n".join(lines), x=0.005, ha="left", fontsize=8.5, color=_ROOFLINE_COLOUR)
    styles = dict(_styled([point for panel in panels for point in panel.points]))
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    drawn = []
    for axes, panel in zip(every, panels, strict=True):
        ends = [_series_line(axes, panel.points, label, styles[label]) for label in _labels(panel.points)]
        drawn.append([*ends, _roofline(axes, [point for point in panel.points if point.kind != "reference"])])
        _decorate(axes, sorted({point.n for point in panel.points}), panel.title, "")
        if axes is not every[0]:
            axes.set_ylabel("")
    for axes, ends in zip(every, drawn, strict=True):
        _label(axes, ends)
    return figure


def _series_line(axes: Axes, points: Sequence[Point], label: str, style: tuple[str, str, str]) -> _End:
    kind = next(point.kind for point in points if point.label == label)
    colour, marker, _ = style
    end = _line(axes, *_series(points, label), (colour, marker, _KINDS[kind]["linestyle"]))
    axes.lines[-1].set(**_KINDS[kind])
    return end


def _figure(points: Sequence[Point], title: str, subtitle: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    ends = [_line(axes, *_series(points, label), style) for label, style in _styled(points)]
    if known := [point for point in points if not math.isnan(point.roofline_gflops)]:
        ends.append(_roofline(axes, known))
    _decorate(axes, sorted({point.n for point in points}), title, subtitle)
    _label(axes, ends)
    return figure


@dataclass(frozen=True)
class _End:
    """The last point of a line, where its label goes."""

    label: str
    colour: str
    n: int
    gflops: float


def _styled(points: Sequence[Point]) -> Iterable[tuple[str, tuple[str, str, str]]]:
    return [(label, STYLES[index % len(STYLES)]) for index, label in enumerate(_labels(points))]


def _labels(points: Iterable[Point]) -> list[str]:
    return list(dict.fromkeys(point.label for point in points))


def _series(points: Sequence[Point], label: str) -> tuple[str, list[int], list[float]]:
    chosen = sorted((point for point in points if point.label == label), key=lambda point: point.n)
    return label, [point.n for point in chosen], [point.gflops for point in chosen]


def _line(axes: Axes, label: str, ns: list[int], gflops: list[float], style: tuple[str, str, str]) -> _End:
    colour, marker, dashes = style
    axes.plot(ns, gflops, color=colour, marker=marker, linestyle=dashes, markersize=5, linewidth=1.8)
    return _End(label, colour, ns[-1], gflops[-1])


def _roofline(axes: Axes, points: Sequence[Point]) -> _End:
    highest: dict[int, float] = {}
    for point in points:
        highest[point.n] = max(point.roofline_gflops, highest.get(point.n, 0.0))
    ns = sorted(highest)
    axes.plot(ns, [highest[n] for n in ns], color=_ROOFLINE_COLOUR, linewidth=3, alpha=0.6)
    return _End("roofline", _ROOFLINE_COLOUR, ns[-1], highest[ns[-1]])


def _decorate(axes: Axes, ns: Sequence[int], title: str, subtitle: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(_ticks(ns), labels=map(str, _ticks(ns)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:,g}")
    axes.set_xlabel("n, order of each matrix")
    axes.set_ylabel("GFLOP/s (n³/3 a matrix)")
    axes.set_title(title, loc="left", pad=22 if subtitle else None)
    axes.text(0, 1.015, subtitle, transform=axes.transAxes, color=_ROOFLINE_COLOUR, fontsize=9)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _ticks(ns: Sequence[int]) -> list[int]:
    """The orders that have room for their number: at least a quarter of an octave after the one before."""
    shown: list[int] = []
    for n in ns:
        if not shown or math.log2(n / shown[-1]) >= 1 / 4:
            shown.append(n)
    return shown


def _label(axes: Axes, ends: Sequence[_End]) -> None:
    """Name each line at its right end, in its colour, moved up or down as far as its neighbours require."""
    ordered = sorted(ends, key=lambda end: end.gflops)
    axes.get_figure().draw_without_rendering()  # type: ignore[union-attr]
    scale = 72 / _DOTS_PER_INCH
    own = [float(axes.transData.transform((end.n, end.gflops))[1]) * scale for end in ordered]
    for end, place, wanted in zip(ordered, own, spread(own, _LABEL_SPACING), strict=True):
        axes.annotate(
            end.label,
            (end.n, end.gflops),
            xytext=(9, wanted - place),
            textcoords="offset points",
            color=end.colour,
            va="center",
            annotation_clip=False,
        )


def spread(places: Sequence[float], distance: float) -> list[float]:
    """Ascending places moved as little as it takes to be at least `distance` apart, each crowd about its middle."""
    crowds: list[list[float]] = []
    for place in places:
        crowds.append([place])
        while (
            len(crowds) > 1
            and _middle(crowds[-1]) - _middle(crowds[-2]) < distance * (len(crowds[-1]) + len(crowds[-2])) / 2
        ):
            crowds[-2:] = [crowds[-2] + crowds[-1]]
    return [
        _middle(crowd) + (index - (len(crowd) - 1) / 2) * distance for crowd in crowds for index in range(len(crowd))
    ]


def _middle(crowd: Sequence[float]) -> float:
    return sum(crowd) / len(crowd)


def write(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure that was made with `SETTINGS` to `stem`.png and `stem`.svg; folders are made.

    Raises
    ------
    DataFileError
        If a file cannot be written.
    """
    return [_save(figure, stem.with_name(f"{stem.name}.{kind}"), kind) for kind in _FORMATS]


def _save(figure: Figure, path: Path, kind: str) -> Path:
    drawing = io.BytesIO()
    figure.savefig(drawing, format=kind, metadata=_FORMATS[kind])
    make_folder(path.parent)
    replace_file(path, drawing.getvalue())
    return path
