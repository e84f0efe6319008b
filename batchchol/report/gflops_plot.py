"""GFLOP/s over n as a plot with the roofline drawn in. Needs matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from batchchol.errors import BatchcholError, optional
from batchchol.report.style import GFLOPS, GREY, ORDER, distinct, figure_of, name_lines, octaves, plain, room, save
from batchchol.tune.choosing.winners import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KINDS: dict[str, dict[str, Any]] = {
    "own": {"linestyle": "-", "linewidth": 2.2},
    "peer": {"linestyle": "--", "linewidth": 1.4, "markersize": 4},
    "reference": {"linestyle": ":", "linewidth": 1.0, "markersize": 4, "markerfacecolor": "white", "alpha": 0.8},
}
_SIZE_INCHES, _DOTS_PER_INCH = (9.0, 5.4), 160
# A panel's height, its width but for names at lines, and what a character of those takes.
_PANEL_HEIGHT, _PANEL_WIDTH, _NAME_CHARACTER = 4.8, 2.8, 0.075
_CAPTION_CHARACTERS, _CAPTION_LINE_INCHES = 15.5, 0.16


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
    """Raise without matplotlib, which is in `extra` with whatever else the caller needs.

    Raises
    ------
    BatchcholError
        If it cannot be imported; says how to get it.
    """
    optional("matplotlib", "a plot", extra)


def draw(points: Iterable[Point], stem: Path, *, title: str, subtitle: str = "") -> list[Path]:
    """Draw GFLOP/s over n, one line a label, in the order of their first points, with the roofline above.

    Parameters
    ----------
    points : iterable of Point
        At each n the highest of their rooflines is drawn, except those that are NaN: not known.
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
    everything = list(points)
    if not everything:
        raise BatchcholError("points: got none, expected at least one to draw")
    return save(lambda: _figure(everything, title, subtitle), stem)


def draw_panels(
    panels: Sequence[Panel], stem: Path, *, title: str, caption: str = "", width: float = _PANEL_WIDTH
) -> list[Path]:
    """Draw panels as `draw` does, beside each other over the same GFLOP/s; a label is the same line in each.

    Parameters
    ----------
    panels : sequence of Panel
    stem : Path
        Where to, as in `draw`.
    title, caption : str
        Above and below all of them.
    width : float
        Inches of a panel, but for the names at its lines.

    Raises
    ------
    BatchcholError
        As `draw`.
    """
    require_matplotlib()
    if not panels or not all(panel.points for panel in panels):
        raise BatchcholError("panels: got one without points, expected at least one point to draw in each")
    return save(lambda: _panels_figure(panels, title, caption, width), stem)


def _panels_figure(panels: Sequence[Panel], title: str, caption: str, width: float) -> Figure:
    longest = max(len(point.label) for panel in panels for point in panel.points)
    width, height = width + _NAME_CHARACTER * longest, _PANEL_HEIGHT
    lines = textwrap.wrap(caption, round(width * len(panels) * _CAPTION_CHARACTERS)) if caption else []
    figure = figure_of((width * len(panels), height + _CAPTION_LINE_INCHES * len(lines)), _DOTS_PER_INCH)
    figure.suptitle(title, x=0.005, ha="left", fontsize=12)
    if lines:
        figure.supxlabel("\n".join(lines), x=0.005, ha="left", fontsize=8.5, color=GREY)
    styles = _styles([point for panel in panels for point in panel.points])
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, panel in zip(every, panels, strict=True):
        _plot(axes, panel.points, styles, _KINDS, apart=1 / 2)
        axes.set_title(panel.title, loc="left")
        if axes is not every[0]:
            axes.set_ylabel("")
    for axes in every:
        name_lines(axes)
    return figure


def _figure(points: Sequence[Point], title: str, subtitle: str) -> Figure:
    figure = figure_of(_SIZE_INCHES, _DOTS_PER_INCH)
    axes = figure.add_subplot()
    _plot(axes, points, _styles(points))
    axes.set_title(title, loc="left", pad=22 if subtitle else None)
    axes.text(0, 1.015, subtitle, transform=axes.transAxes, color=GREY, fontsize=9)
    name_lines(axes)
    return figure


def _by_label(points: Iterable[Point]) -> dict[str, list[Point]]:
    """The points of each line by n; lines in the order of their first points."""
    found = grouped(points, lambda point: point.label)
    return {label: sorted(line, key=lambda point: point.n) for label, line in found.items()}


def _styles(points: Iterable[Point]) -> dict[str, dict[str, Any]]:
    return {
        label: {"markersize": 5, "linewidth": 1.8} | style for label, style in distinct([*_by_label(points)]).items()
    }


def _plot(
    axes: Axes,
    points: Sequence[Point],
    styles: Mapping[str, Mapping[str, Any]],
    kinds: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    apart: float = 1 / 4,
) -> None:
    """A line a label, below the highest known roofline; ticks are at least `apart` octaves from each other."""
    for label, line in _by_label(points).items():
        style = {**styles[label], **kinds.get(line[0].kind, {})}
        axes.plot([point.n for point in line], [point.gflops for point in line], label=label, **style)
    known = [point for point in points if point.kind != "reference" and not math.isnan(point.roofline_gflops)]
    if known:
        alike = sorted(grouped(known, lambda point: point.n).items())
        highest = [max(point.roofline_gflops for point in same) for _, same in alike]
        axes.plot([n for n, _ in alike], highest, color=GREY, linewidth=3, alpha=0.6, label="roofline")
    plain(axes, ORDER, GFLOPS, log=True)
    octaves(axes, room(sorted({point.n for point in points}), apart, last=False), size=10)
