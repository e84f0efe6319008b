"""The rates of datasets/larger/larger_steps_h200.csv by step, with what bounds whole factorizations, as a figure.

    python -m tests.times.figures.larger_steps_plot

from the root of the repository writes docs/larger_steps_h200.png and .svg. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchchol.report.style import BLUE, GREEN, GREY, ORANGE, WIDE, name_lines, panels, plain

from .drawing import Row, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UPDATES = {"left": ("gemm, left looking", BLUE), "right": ("syrk, right looking", ORANGE)}


def main() -> None:
    draw("larger_steps", figure)


def figure(rows: Sequence[Row]) -> Figure:
    """A panel for each dtype: the update's rate at each step, the bounds that follow, and what is reached."""
    drawn, (single, double) = panels(WIDE, one_scale=True)
    first = next(row for row in rows if row["part"] == "update")
    drawn.suptitle(
        f"One matrix of order {int(first['n']):,}, panels of {first['nb']} columns; {first['gpu']}, {first['date']}",
        x=0.005,
        ha="left",
        fontsize=12,
    )
    for axes, dtype in ((single, "float32"), (double, "float64")):
        _panel(axes, [row for row in rows if row["dtype"] == dtype and row["n"] == first["n"]])
        axes.set_title(dtype, loc="left")
    # Both have one scale: only now is its top known.
    single.set_ylim(bottom=0)
    double.set_ylabel("")
    for axes in (single, double):
        name_lines(axes, 9)
    return drawn


def _panel(axes: Axes, rows: Sequence[Row]) -> None:
    for looking, (label, colour) in UPDATES.items():
        steps = [row for row in rows if (row["part"], row["looking"]) == ("update", looking)]
        axes.plot([int(row["at"]) for row in steps], [_rate(row) for row in steps], color=colour, label=label)
        bound = next(row for row in rows if (row["part"], row["looking"]) == ("bound", looking))
        last = int(steps[-1]["at"])
        axes.plot([0, last], [_rate(bound)] * 2, color=colour, linestyle=":", label=f"bound, {looking} looking")
    whole = {row["who"]: _rate(row) for row in rows if row["part"] == "whole"}
    peer = max(rate for who, rate in whole.items() if who.startswith("cusolver"))
    axes.plot([0, last], [whole["batchchol"]] * 2, color=GREEN, linewidth=2, label="ours")
    axes.plot([0, last], [peer] * 2, color=GREY, linestyle="--", label="cuSOLVER")
    plain(axes, "first column of the step's panel", "GFLOP/s of the update; n³/3 of all of it")
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
    axes.set_xticks(range(0, 20_001, 5_000))


def _rate(row: Row) -> float:
    return float(row["gflops"])


if __name__ == "__main__":
    main()
