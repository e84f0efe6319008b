"""What a panel is made of, by its parameters, as a figure: updates by nb, tiles by ib, the rows below them by rows.

    python -m tests.times.figures.larger_panel_plot

from the root of the repository draws datasets/larger/larger_panel_h200.csv as docs/larger_panel_h200.png and .svg.
Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchchol.report.style import STYLES, figure_of, name_lines, plain

from .drawing import Row, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DTYPES = ("float32", "float64")


def main() -> None:
    draw("larger_panel", figure)


def figure(rows: Sequence[Row]) -> Figure:
    """Updates by the columns of a panel; a tile over its order, a line for each ib; the rows over rows of a block."""
    drawn = figure_of((11.0, 10.6))
    drawn.suptitle(f"A panel's parts; {rows[0]['gpu']}, {rows[0]['date']}", x=0.005, ha="left", fontsize=12)
    updates, above, below = drawn.subplots(3, 2)
    for axes, dtype in zip(updates, DTYPES, strict=True):
        _updates(axes, [row for row in rows if row["dtype"] == dtype], dtype)
    for axes, dtype in zip(above, DTYPES, strict=True):
        mine = [row for row in rows if (row["part"], row["dtype"]) == ("tile", dtype)]
        _lines(axes, mine, "ib", "nb", f"nb, order of a diagonal tile, {dtype}")
    for axes, dtype in zip(below, DTYPES, strict=True):
        mine = [row for row in rows if (row["part"], row["dtype"]) == ("rows", dtype)]
        _lines(axes, mine, "nb", "rows", f"rows of a block of threads, of 8,192 below a tile, {dtype}")
    return drawn


def _updates(axes: Axes, rows: Sequence[Row], dtype: str) -> None:
    for part, (colour, marker, dashes) in zip(("gemm", "syrk"), STYLES, strict=False):
        points = [(int(row["nb"]), float(row["gflops"])) for row in rows if row["part"] == part]
        style = {"color": colour, "marker": marker, "linestyle": dashes, "markersize": 4}
        axes.plot(*zip(*points, strict=True), label=part, **style)
    plain(axes, f"nb, columns of a panel of 10,240 rows, {dtype}", "GFLOP/s, cuBLAS")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    name_lines(axes)


def _lines(axes: Axes, rows: Sequence[Row], name: str, over: str, label: str) -> None:
    values = sorted({int(row[name]) for row in rows})
    for value, (colour, marker, dashes) in zip(values, STYLES, strict=False):
        points = sorted((int(row[over]), float(row["us"])) for row in rows if int(row[name]) == value)
        style = {"color": colour, "marker": marker, "linestyle": dashes, "markersize": 4}
        axes.plot(*zip(*points, strict=True), label=f"{name} = {value}", **style)
    plain(axes, label, "µs")
    axes.set_ylim(bottom=0)
    axes.set_xticks(sorted({int(row[over]) for row in rows}))
    name_lines(axes)


if __name__ == "__main__":
    main()
