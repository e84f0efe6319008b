"""The rates of datasets/sweeps/course_batches_h200.parquet by batch, as a figure.

    python -m tests.times.figures.course_batches_plot

from the root of the repository writes docs/course_batches_h200.png and .svg. Needs matplotlib and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from batchchol.measure import parquet
from batchchol.report.style import GFLOPS, STYLES, WIDE, legend, panels, plain, save
from batchchol.tune.choosing.winners import grouped

from .drawing import ROOT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = ROOT / "datasets" / "sweeps" / "course_batches_h200.parquet"
FAMILIES = ("thread", "shared")


def main() -> None:
    rows = parquet.read(DATA).to_pylist()
    for path in save(lambda: figure(rows), ROOT / "docs" / "course_batches_h200"):
        print(path)


def best(rows: Iterable[Mapping[str, Any]], family: str) -> dict[int, list[tuple[int, float]]]:
    """For each order the batches that were measured, and the GFLOP/s of the fastest kernel of a family there."""
    mine = [row for row in rows if row["family"] == family and row["status"] == "correct"]
    found = {
        case: n**3 / 3 * batch / min(row["median_seconds"] for row in alike) / 1e9
        for case, alike in grouped(mine, lambda row: (row["n"], row["batch"])).items()
        for n, batch in [case]
    }
    orders = grouped(sorted(found), lambda case: case[0])
    return {n: [(batch, found[n, batch]) for _, batch in cases] for n, cases in orders.items()}


def figure(rows: Iterable[Mapping[str, Any]]) -> Figure:
    """A panel for each family, a line for each order."""
    known = list(rows)
    drawn, axes = panels(WIDE, one_scale=True)
    last = max(str(row["date"]) for row in known)[:10]
    for panel, family in zip(axes, FAMILIES, strict=True):
        for (n, points), (colour, marker, dashes) in zip(sorted(best(known, family).items()), STYLES, strict=False):
            style = {"color": colour, "marker": marker, "linestyle": dashes, "markersize": 4}
            panel.plot(*zip(*points, strict=True), label=f"n = {n}", **style)
        plain(panel, "matrices of a call", GFLOPS)
        panel.set_xscale("log", base=2)
        panel.set_title(f"{family}, float32, ieee; {known[0]['device']}, to {last}", loc="left", fontsize=10)
    legend(drawn, *axes[0].get_legend_handles_labels())
    axes[0].set_ylim(bottom=0)
    axes[1].set_ylabel("")
    return drawn


if __name__ == "__main__":
    main()
