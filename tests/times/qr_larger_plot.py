"""The rates of datasets/qr_larger_h200.csv over the order as a figure: figure 1 of Haidar et al. (2015), for QR.

    python -m tests.times.qr_larger_plot

from the root of the repository writes docs/qr_larger_h200.png and .svg. Needs matplotlib.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from batchchol.report.style import BLUE, GREEN, GREY, ONE, ORANGE, STYLES, figure_of, name_lines, over_orders, save

from .qr import DATASETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA, STEM = DATASETS / "qr_larger_h200.csv", DATASETS.parent / "docs" / "qr_larger_h200"
WAYS = {
    "panels of 32": ("panels of 32 columns", GREEN),
    "panels of 8": ("panels of 8", BLUE),
    "reflectors one by one": ("reflectors one by one", ORANGE),
    "geqrfBatched": ("cuBLAS", GREY),
    "LAPACK": ("LAPACK, 16 cores", STYLES[3][0]),
}
Row = Mapping[str, str]


def main() -> None:
    with open(DATA, newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["dtype"] == "float32"]
    for path in save(lambda: figure(rows), STEM):
        print(path)


def figure(rows: Sequence[Row]) -> Figure:
    """A line for each way, over the orders that it was measured at."""
    drawn = figure_of(ONE)
    axes, first = drawn.subplots(), rows[0]
    title = f"Batches of QR factorizations, {first['dtype']}; {first['gpu']}, {first['date']}"
    drawn.suptitle(title, x=0.005, ha="left", fontsize=12)
    for way, (label, colour) in WAYS.items():
        points = sorted((int(row["n"]), float(row["gflops"])) for row in rows if row["way"] == way)
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=4, label=label)
    over_orders(axes, sorted({int(row["n"]) for row in rows}), "GFLOP/s (4n³/3 a matrix)", log=True)
    name_lines(axes, 9)
    return drawn


if __name__ == "__main__":
    main()
