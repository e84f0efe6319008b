"""The rates of datasets/lu_steps_h200.csv over the order as a figure: figure 1 of Haidar et al. (2015), for LU.

    python -m tests.times.lu_steps_plot

from the root of the repository writes docs/lu_steps_h200.png and .svg. Needs matplotlib.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from batchchol.report.style import BLUE, GREEN, GREY, ONE, ORANGE, STYLES, figure_of, name_lines, over_orders, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
DATA, STEM = ROOT / "datasets" / "lu_steps_h200.csv", ROOT / "docs" / "lu_steps_h200"
WAYS = {
    "nested panels": ("nested panels", GREEN),
    "rows at once": ("rows at once", BLUE),
    "rows one by one": ("rows one by one", ORANGE),
    "cublas": ("cuBLAS", GREY),
    "lapack": ("LAPACK, 16 cores", STYLES[3][0]),
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
    title = f"Batches of LU factorizations, {first['dtype']}; {first['gpu']}, {first['date']}"
    drawn.suptitle(title, x=0.005, ha="left", fontsize=12)
    for way, (label, colour) in WAYS.items():
        points = [(int(row["n"]), float(row["gflops"])) for row in rows if row["way"] == way]
        axes.plot(*zip(*sorted(points), strict=True), color=colour, marker="o", markersize=4, label=label)
    over_orders(axes, sorted({int(row["n"]) for row in rows}), "GFLOP/s (2n³/3 a matrix)", log=True)
    name_lines(axes, 9)
    return drawn


if __name__ == "__main__":
    main()
