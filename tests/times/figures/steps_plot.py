"""The rates of LU or QR past one multiprocessor over the order, as a figure: figure 1 of Haidar et al. (2015).

    python -m tests.times.figures.steps_plot lu
    python -m tests.times.figures.steps_plot qr

from the root of the repository draw datasets/general/lu_steps_h200.csv and datasets/general/qr_larger_h200.csv. Needs
matplotlib.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from batchchol.report.style import BLUE, GREEN, GREY, ONE, ORANGE, STYLES, figure_of, name_lines, over_orders

from .drawing import Row, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (GREEN, BLUE, ORANGE, GREY, STYLES[3][0], STYLES[4][0])


@dataclass(frozen=True)
class Steps:
    """A data set: its name, the operation's flops, and the labels of its ways."""

    data: str
    flops: str
    ways: Mapping[str, str]


STEPS = {
    "lu": Steps(
        "lu_steps",
        "2n³/3",
        {
            "nested panels": "nested panels",
            "rows at once": "rows at once",
            "rows one by one": "rows one by one",
            "cublas": "cuBLAS",
            "lapack": "LAPACK, 16 cores",
            "one kernel": "one kernel",
        },
    ),
    "qr": Steps(
        "qr_larger",
        "4n³/3",
        {
            "panels of 32": "panels of 32 columns",
            "panels of 8": "panels of 8",
            "reflectors one by one": "reflectors one by one",
            "geqrfBatched": "cuBLAS",
            "LAPACK": "LAPACK, 16 cores",
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.figures.steps_plot", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("operation", choices=STEPS)
    operation = parser.parse_args().operation
    draw(STEPS[operation].data, partial(figure, operation))


def figure(operation: str, rows: Sequence[Row]) -> Figure:
    """A line for each way that was measured in float32, over its orders."""
    steps, rows = STEPS[operation], [row for row in rows if row["dtype"] == "float32"]
    drawn = figure_of(ONE)
    axes, first = drawn.subplots(), rows[0]
    title = f"Batches of {operation.upper()} factorizations, {first['dtype']}; {first['gpu']}, {first['date']}"
    drawn.suptitle(title, x=0.005, ha="left", fontsize=12)
    for (way, label), colour in zip(steps.ways.items(), COLOURS, strict=False):
        points = sorted((int(row["n"]), float(row["gflops"])) for row in rows if row["way"] == way)
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=4, label=label)
    over_orders(axes, sorted({int(row["n"]) for row in rows}), f"GFLOP/s ({steps.flops} a matrix)", log=True)
    name_lines(axes, 9)
    return drawn


if __name__ == "__main__":
    main()
