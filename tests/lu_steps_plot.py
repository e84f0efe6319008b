"""The rates of datasets/lu_steps_h200.csv, a curve for each step of an LU factorization, as a figure.

    python -m tests.lu_steps_plot

from the root of the repository writes docs/lu_steps_h200.png and .svg. Needs matplotlib.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from batchchol.report.style import BLUE, GREEN, GREY, ORANGE, WIDE, panels, plain, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
DATA, STEM = ROOT / "datasets" / "lu_steps_h200.csv", ROOT / "docs" / "lu_steps_h200"
# What each curve is called, its colour and its line.
WAYS = {
    "nested panels": ("panels within panels", GREEN, "-"),
    "rows at once": ("rows of a panel interchanged at once", BLUE, "-"),
    "rows one by one": ("rows interchanged one by one", ORANGE, "-"),
    "cublas": ("cuBLAS getrfBatched", GREY, "--"),
    "lapack": ("LAPACK on the CPU", GREY, ":"),
}
Row = Mapping[str, str]


def main() -> None:
    with open(DATA, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for path in save(lambda: figure(rows), STEM):
        print(path)


def figure(rows: Sequence[Row]) -> Figure:
    """A panel for each dtype: GFLOP/s over n, a curve for each way."""
    drawn, both = panels(WIDE, one_scale=True)
    drawn.suptitle(
        f"Batches of LU factorizations; {rows[0]['gpu']}, {rows[0]['date']}", x=0.005, ha="left", fontsize=12
    )
    for axes, dtype in zip(both, ("float32", "float64"), strict=True):
        for way, (label, colour, line) in WAYS.items():
            own = [row for row in rows if (row["dtype"], row["way"]) == (dtype, way)]
            axes.plot(
                [int(row["n"]) for row in own],
                [float(row["gflops"]) for row in own],
                line,
                color=colour,
                label=label,
                marker="o",
                markersize=3,
            )
        axes.set_title(dtype, loc="left")
        plain(axes, "n", "GFLOP/s of 2n\N{SUPERSCRIPT THREE}/3")
    both[0].set_ylim(bottom=0)
    handles, labels = both[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return drawn


if __name__ == "__main__":
    main()
