"""What factorizations take in joules and in time, over n, ours and others'. Needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchchol.compare.rows import Row
from batchchol.errors import BatchcholError
from batchchol.report import gflops_plot
from batchchol.report.style import GREY, ORDER, distinct, figure_of, name_lines, octaves, plain, room, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE, _CAPTION_CHARACTERS = (11.5, 4.8), 170
# Orders that are closer, in octaves, have no room for their numbers.
_TICKS = 1 / 2


def draw(lines: Mapping[str, Sequence[Row]], stem: Path, *, title: str, caption: str = "") -> list[Path]:
    """Draw microjoules and nanoseconds a matrix over n, beside each other, a line for each name.

    Raises
    ------
    BatchcholError
        If matplotlib is not installed, a name has no rows, or a file cannot be written.
    """
    gflops_plot.require_matplotlib()
    if empty := [name for name, rows in lines.items() if not rows]:
        raise BatchcholError(f"lines: got no row of {', '.join(empty)}, expected at least one of each")
    return save(lambda: _figure(lines, title, caption), stem)


def _figure(lines: Mapping[str, Sequence[Row]], title: str, caption: str) -> Figure:
    figure = figure_of(_SIZE)
    figure.suptitle(title, x=0.005, ha="left", fontsize=12)
    if caption:
        text = "\n".join(textwrap.wrap(caption, _CAPTION_CHARACTERS))
        figure.supxlabel(text, x=0.005, ha="left", fontsize=8.5, color=GREY)
    energy, time = figure.subplots(1, 2)
    styles = distinct([*lines])
    for name, rows in lines.items():
        ordered = sorted(rows, key=lambda row: row.n)
        ns = [row.n for row in ordered]
        _line(energy, ns, [row.joules / row.batch * 1e6 for row in ordered], name, styles[name])
        _line(time, ns, [row.ns_per_matrix for row in ordered], name, styles[name])
    shown = room(sorted({row.n for rows in lines.values() for row in rows}), _TICKS, last=False)
    for axes, label in ((energy, "µJ a matrix"), (time, "ns a matrix")):
        plain(axes, ORDER, label, log=True)
        octaves(axes, shown, size=10)
        name_lines(axes)
    return figure


def _line(axes: Axes, ns: Sequence[int], values: Sequence[float], name: str, style: Mapping[str, Any]) -> None:
    axes.plot(ns, values, label=name, markersize=5, linewidth=1.8, **style)
