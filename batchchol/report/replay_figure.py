"""The replay as a figure: what strategies had found after how much measuring. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from batchchol.report.gflops_plot import STYLES
from batchchol.tune.search.replay import CLOSE, FARTHEST, SHARE, Run, Surface, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE, _DOTS_PER_INCH = (12.0, 8.6), 140
_GREY, _GRID = "#767676", "#DDDDDD"
_SHARES = np.linspace(0.002, FARTHEST, 149)
_MOST_REGRET = 1.0
_DASHES = ("-", "--")
# Orders that are closer have no room for their numbers.
_TICK_RATIO = 1.25


def draw(surfaces: Sequence[Surface], runs: Sequence[Run], title: str) -> Figure:
    """Four panels: regret and success over the share measured, and measurements over n for each closeness."""
    from matplotlib.figure import Figure

    by_strategy: dict[str, list[Run]] = {}
    for run in runs:
        by_strategy.setdefault(run.strategy, []).append(run)
    styles = {name: STYLES[place % len(STYLES)] for place, name in enumerate(by_strategy)}
    figure = Figure(figsize=_SIZE, dpi=_DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title, x=0.005, ha="left", fontsize=12)
    (regret, success), below = figure.subplots(2, 2)
    for name, mine in by_strategy.items():
        _regret(regret, surfaces, mine, name, styles[name][0])
        _success(success, surfaces, mine, styles[name][0])
    _finish_regret(regret, surfaces)
    _finish_success(success)
    for axes, close in zip(below, CLOSE, strict=True):
        for name, mine in by_strategy.items():
            _needed(axes, surfaces, mine, close, styles[name])
        _finish_needed(axes, surfaces, close)
    handles, labels = regret.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
    return figure


def _regret(axes: Axes, surfaces: Sequence[Surface], runs: Sequence[Run], name: str, colour: str) -> None:
    """The median of all runs, and the band between their quartiles."""
    each = np.array([[run.after(count) for count in _counts(surfaces[run.number])] for run in runs])
    # No number yet is as bad as can be drawn.
    low, middle, high = np.quantile(np.minimum(each, 10 * _MOST_REGRET), [0.25, 0.5, 0.75], axis=0)
    axes.plot(_SHARES, middle, color=colour, linewidth=1.8, label=name)
    axes.fill_between(_SHARES, low, high, color=colour, alpha=0.15, linewidth=0)


def _success(axes: Axes, surfaces: Sequence[Surface], runs: Sequence[Run], colour: str) -> None:
    counts = np.array([len(surfaces[run.number].points) for run in runs])
    for close, dashes in zip(CLOSE, _DASHES, strict=True):
        shares = np.array([run.needed(close) for run in runs]) / counts
        there = [(shares <= share).mean() for share in _SHARES]
        axes.plot(_SHARES, there, color=colour, linestyle=dashes, linewidth=1.8)


def _needed(
    axes: Axes, surfaces: Sequence[Surface], runs: Sequence[Run], close: float, style: tuple[str, str, str]
) -> None:
    """The median of the runs of each n, and the line below which nine out of ten are."""
    colour, marker, _ = style
    orders: dict[int, list[Run]] = {}
    for run in runs:
        orders.setdefault(surfaces[run.number].case.n, []).append(run)
    found = {n: line(surfaces, mine, close) for n, mine in orders.items()}
    ns = sorted(found)
    axes.plot(ns, [_drawn(found[n].median) for n in ns], color=colour, marker=marker, markersize=4, linewidth=1.8)
    axes.plot(ns, [_drawn(found[n].high) for n in ns], color=colour, linestyle=":", linewidth=1.2)


def _counts(surface: Surface) -> list[int]:
    return [max(1, math.floor(share * len(surface.points) + 1e-9)) for share in _SHARES]


def _drawn(count: float) -> float:
    """What is infinite has no place: the line has a gap."""
    return count if math.isfinite(count) else math.nan


def _finish_regret(axes: Axes, surfaces: Sequence[Surface]) -> None:
    noise = float(np.median([surface.noise for surface in surfaces]))
    axes.set_yscale("symlog", linthresh=CLOSE[-1], linscale=0.5)
    axes.set_ylim(0, _MOST_REGRET)
    axes.axhspan(0, noise, color=_GREY, alpha=0.25, linewidth=0)
    axes.annotate(f"noise: {noise:.1%}", (FARTHEST, noise), ha="right", va="bottom", color=_GREY, fontsize=8)
    axes.set_yticks([0, *sorted(CLOSE), 0.1, 0.2, 0.5, 1.0])
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    _plain(axes, "slower than the best of the case", "best so far: median and quartiles of all runs")


def _finish_success(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    words = ", ".join(
        f"{'solid' if dashes == '-' else 'dashed'}: within {close:.0%}"
        for close, dashes in zip(CLOSE, _DASHES, strict=True)
    )
    _plain(axes, "runs that are there", f"runs that came close to the best; {words}")


def _plain(axes: Axes, label: str, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("measured points of the case")
    axes.set_ylabel(label)
    axes.set_xlim(0, FARTHEST)
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    axes.axvline(SHARE, color=_GREY, linewidth=1)
    _grid(axes)


def _finish_needed(axes: Axes, surfaces: Sequence[Surface], close: float) -> None:
    sizes: dict[int, int] = {}
    for surface in surfaces:
        sizes[surface.case.n] = max(len(surface.points), sizes.get(surface.case.n, 0))
    ns = sorted(sizes)
    axes.fill_between(ns, [SHARE * sizes[n] for n in ns], color=_GREY, alpha=0.2, linewidth=0)
    shown: list[int] = []
    for n in ns:
        if not shown or n / shown[-1] >= _TICK_RATIO:
            shown.append(n)
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, labels=map(str, shown), fontsize=9)
    axes.minorticks_off()
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:,.10g}")
    axes.set_xlabel("n, order of each matrix")
    axes.set_ylabel("measurements")
    title = f"until within {close:.0%}: median; dotted: 9 of 10 runs; grey: {SHARE:.0%} of the points"
    axes.set_title(title, loc="left", fontsize=10)
    _grid(axes)


def _grid(axes: Axes) -> None:
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
