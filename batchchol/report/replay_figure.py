"""The replay as a figure: what strategies had found after how much measuring. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from batchchol.report.style import GREY, ORDER, STYLES, figure_of, name_lines, octaves, percent, plain, room
from batchchol.tune.choosing.winners import grouped
from batchchol.tune.search.replay import CLOSE, FARTHEST, SHARE, Run, Surface, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (12.0, 8.6)
_SHARES = np.linspace(0.002, FARTHEST, 149)
_MOST_REGRET = 1.0
_DASHES = ("-", "--")
# Orders that are closer, in octaves, have no room for their numbers.
_TICKS = math.log2(1.25)


def draw(surfaces: Sequence[Surface], runs: Sequence[Run], title: str) -> Figure:
    """Four panels: regret and success over the share measured, and measurements over n for each closeness."""
    by_strategy = grouped(runs, lambda run: run.strategy)
    figure = figure_of(_SIZE)
    figure.suptitle(title, x=0.005, ha="left", fontsize=12)
    (regret, success), below = figure.subplots(2, 2)
    _regret(regret, surfaces, by_strategy)
    _success(success, surfaces, by_strategy)
    for axes, close in zip(below, CLOSE, strict=True):
        _needed(axes, surfaces, by_strategy, close)
    for axes in (regret, success, *below):
        name_lines(axes)
    return figure


def _regret(axes: Axes, surfaces: Sequence[Surface], by_strategy: Mapping[str, Sequence[Run]]) -> None:
    """The median of all runs, and the band between their quartiles."""
    for (name, runs), (colour, *_) in zip(by_strategy.items(), STYLES, strict=False):
        each = np.array([[run.after(count) for count in _counts(surfaces[run.number])] for run in runs])
        # No number yet is as bad as can be drawn.
        low, middle, high = np.quantile(np.minimum(each, 10 * _MOST_REGRET), [0.25, 0.5, 0.75], axis=0)
        axes.plot(_SHARES, middle, color=colour, linewidth=1.8, label=name)
        axes.fill_between(_SHARES, low, high, color=colour, alpha=0.15, linewidth=0)
    noise = float(np.median([surface.noise for surface in surfaces]))
    axes.axhspan(0, noise, color=GREY, alpha=0.25, linewidth=0)
    axes.annotate(f"noise: {noise:.1%}", (FARTHEST, noise), ha="right", va="bottom", color=GREY, fontsize=8)
    _over_shares(axes, "slower than the best of the case", "best so far: median and quartiles of all runs")
    axes.set_yscale("symlog", linthresh=CLOSE[-1], linscale=0.5)
    axes.set_ylim(0, _MOST_REGRET)
    axes.set_yticks([0, *sorted(CLOSE), 0.1, 0.2, 0.5, 1.0])
    # Another scale has another formatter.
    percent(axes.yaxis)


def _success(axes: Axes, surfaces: Sequence[Surface], by_strategy: Mapping[str, Sequence[Run]]) -> None:
    """The share of the runs that had come close enough."""
    for (name, runs), (colour, *_) in zip(by_strategy.items(), STYLES, strict=False):
        counts = np.array([len(surfaces[run.number].points) for run in runs])
        for close, dashes in zip(CLOSE, _DASHES, strict=True):
            shares = np.array([run.needed(close) for run in runs]) / counts
            there = [(shares <= share).mean() for share in _SHARES]
            label = name if dashes == _DASHES[0] else "_"
            axes.plot(_SHARES, there, color=colour, linestyle=dashes, linewidth=1.8, label=label)
    words = ", ".join(
        f"{'solid' if dashes == '-' else 'dashed'}: within {close:.0%}"
        for close, dashes in zip(CLOSE, _DASHES, strict=True)
    )
    _over_shares(axes, "runs that are there", f"runs that came close to the best; {words}")
    axes.set_ylim(0, 1.02)


def _over_shares(axes: Axes, label: str, title: str) -> None:
    """Shares over the share of the points that were measured."""
    plain(axes, "measured points of the case", label)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlim(0, FARTHEST)
    axes.axvline(SHARE, color=GREY, linewidth=1)
    percent(axes.xaxis)
    percent(axes.yaxis)


def _counts(surface: Surface) -> list[int]:
    return [max(1, math.floor(share * len(surface.points) + 1e-9)) for share in _SHARES]


def _needed(axes: Axes, surfaces: Sequence[Surface], by_strategy: Mapping[str, Sequence[Run]], close: float) -> None:
    """The median of the runs of each n, and the line below which nine out of ten are."""
    # Among cases of one n, the one with the most points.
    sizes = {surface.case.n: len(surface.points) for surface in sorted(surfaces, key=lambda each: len(each.points))}
    ns = sorted(sizes)
    for (name, runs), (colour, marker, _) in zip(by_strategy.items(), STYLES, strict=False):
        found = [line(surfaces, [run for run in runs if surfaces[run.number].case.n == n], close) for n in ns]
        medians, highs = [_drawn(each.median) for each in found], [_drawn(each.high) for each in found]
        axes.plot(ns, medians, color=colour, marker=marker, markersize=4, linewidth=1.8, label=name)
        axes.plot(ns, highs, color=colour, linestyle=":", linewidth=1.2)
    axes.fill_between(ns, [SHARE * sizes[n] for n in ns], color=GREY, alpha=0.2, linewidth=0)
    octaves(axes, room(ns, _TICKS, last=False))
    # After the orders, whose axis alone has no minor ticks.
    plain(axes, ORDER, "measurements", log=True)
    title = f"until within {close:.0%}: median; dotted: 9 of 10 runs; grey: {SHARE:.0%} of the points"
    axes.set_title(title, loc="left", fontsize=10)


def _drawn(count: float) -> float:
    """What is infinite has no place: the line has a gap."""
    return count if math.isfinite(count) else math.nan
