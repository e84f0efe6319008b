"""When the calls of datasets/larger/larger_timeline_h200.csv ran, on which stream, as a figure.

    python -m tests.times.figures.larger_timeline_plot

from the root of the repository writes docs/larger_timeline_h200.png and .svg. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchchol.report.style import BLUE, GREEN, ORANGE, figure_of
from batchchol.tune.choosing.winners import grouped

from .drawing import Row, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"panel": ORANGE, "gemm": BLUE, "syrk": GREEN}
STREAMS = ("first", "beside")
SIZE = (11.0, 4.6)
NAMED = 0.2  # milliseconds, beside which a name has room


def main() -> None:
    draw("larger_timeline", figure)


def figure(rows: Sequence[Row]) -> Figure:
    """Axes for each variant, over each other: a line a stream, a bar a call."""
    variants = grouped(rows, lambda row: row["variant"])
    drawn, first = figure_of(SIZE), rows[0]
    every = drawn.subplots(len(variants), 1, sharex=True, squeeze=False)[:, 0]
    words = f"One {first['dtype']} matrix of order {int(first['n']):,}, panels of {int(first['nb']):,} columns"
    drawn.suptitle(f"{words}; {first['gpu']}, {first['date']}", x=0.005, ha="left", fontsize=12)
    for axes, (variant, calls) in zip(every, variants.items(), strict=True):
        _bars(axes, calls)
        ended = max(float(call["end_us"]) for call in calls) / 1e3
        axes.set_title(f"{variant}: {ended:.2f} ms", loc="left", fontsize=10)
    every[-1].set_xlabel("milliseconds")
    return drawn


def _bars(axes: Axes, calls: Sequence[Row]) -> None:
    streams = [stream for stream in STREAMS if any(call["stream"] == stream for call in calls)]
    for height, stream in enumerate(reversed(streams)):
        for what, colour in COLOURS.items():
            alike = [call for call in calls if (call["stream"], call["what"]) == (stream, what)]
            times = [(float(call["begin_us"]) / 1e3, float(call["end_us"]) / 1e3) for call in alike]
            bars = [(begin, end - begin) for begin, end in times]
            axes.broken_barh(bars, (height - 0.4, 0.8), color=colour, edgecolor="white", linewidth=0.3)
            longest = max(bars, key=lambda bar: bar[1], default=None)
            if longest and longest[1] > NAMED:
                middle = longest[0] + longest[1] / 2
                axes.text(middle, height, what, ha="center", va="center", color="white", fontsize=8, clip_on=True)
    axes.set_yticks(range(len(streams)), labels=[f"{stream} stream" for stream in reversed(streams)])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)


if __name__ == "__main__":
    main()
