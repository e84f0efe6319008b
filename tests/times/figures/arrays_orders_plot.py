"""The times of datasets/sweeps/arrays_orders_h200.csv by order, as a figure.

    python -m tests.times.figures.arrays_orders_plot

from the root of the repository writes docs/arrays_orders_h200.png and .svg. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from batchchol.report.style import BLUE, GREY, ORANGE, ORDER, WIDE, name_lines, panels, plain

from .drawing import Row, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# An order may take this much more than the next one.
LIMIT = 1.03


def main() -> None:
    draw("arrays_orders", figure)


def slower(times: Mapping[int, float]) -> list[int]:
    """The orders that take over `LIMIT` of the next one's time."""
    return [n for n, each in sorted(times.items()) if n + 1 in times and each > LIMIT * times[n + 1]]


def figure(rows: Sequence[Row]) -> Figure:
    """A panel for each dtype: nanoseconds a matrix, a copy's, and the orders that take longer than the next one."""
    drawn, (single, double) = panels(WIDE, one_scale=True)
    size, last = rows[0]["size"].replace("GiB", " GiB"), max(row["date"] for row in rows)[:10]
    drawn.suptitle(
        f"Arrays, ieee, {size} of matrices; {rows[0]['gpu']}, to {last}",
        x=0.005,
        ha="left",
        fontsize=12,
    )
    for axes, dtype in ((single, "float32"), (double, "float64")):
        _panel(axes, [row for row in rows if row["dtype"] == dtype], 4 if dtype == "float32" else 8)
        axes.set_title(f"{dtype}; dots: over {LIMIT} of the next order's time", loc="left", fontsize=10)
        name_lines(axes, 9)
    double.set_ylabel("")
    return drawn


def _panel(axes: Axes, rows: Sequence[Row], element_bytes: int) -> None:
    times = {int(row["n"]): float(row["ns_per_matrix"]) for row in rows}
    rate = float(rows[0]["copy_bytes_per_second"])
    found = slower(times)
    axes.plot(
        list(times),
        [2 * n**2 * element_bytes / rate * 1e9 for n in times],
        color=GREY,
        linestyle="--",
        label="a copy",
    )
    axes.plot(list(times), list(times.values()), color=BLUE, label="cholesky_ex")
    axes.plot(found, [times[n] for n in found], "o", color=ORANGE, markersize=4, label="_dots")
    plain(axes, ORDER, "ns a matrix", log=True)


if __name__ == "__main__":
    main()
