"""The plots of pages, drawn from the same rows as the claims beside them. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from batchchol.report.claims.listed import Plot
from batchchol.report.gflops_plot import Point, draw


def drawn(plot: Plot, folder: Path | None = None) -> list[Path]:
    """Draw GFLOP/s over n, a line a contender, to where pages have it or to a folder.

    Raises
    ------
    BatchcholError
        If matplotlib is not installed, or a file cannot be written.
    """
    rows = plot.group.published()
    points = [Point(row.contender, row.n, row.gflops, row.roofline_gflops) for row in rows]
    stem = plot.stem if folder is None else folder / plot.stem.name
    return draw(points, stem, title=plot.title, subtitle=f"{plot.group.file}, {rows[0].date}")
