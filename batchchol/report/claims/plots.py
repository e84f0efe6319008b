"""The plots of pages, drawn from the same rows as the claims beside them. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from batchchol.compare.references import lines, references
from batchchol.compare.rows import Row
from batchchol.report import energy_figure
from batchchol.report.claims.listed import Group, Plot
from batchchol.report.gflops_plot import Panel, Point, draw, draw_panels

# What pages call the contenders of a comparison.
_NAMES = {
    "batchchol factor": "ours",
    "batchchol cholesky": "ours, arrays",
    "magma": "MAGMA",
    "mkl-compact": "MKL compact",
    "numpy": "NumPy",
    "scipy": "SciPy",
    "torch": "PyTorch",
}


def drawn(plot: Plot, folder: Path | None = None) -> list[Path]:
    """Draw GFLOP/s over n, or joules and time, to where pages have it or to a folder.

    Raises
    ------
    BatchcholError
        If matplotlib is not installed, or a file cannot be written.
    """
    rows = plot.group.published()
    stem = plot.stem if folder is None else folder / plot.stem.name
    source = f"{plot.group.file}, {rows[0].date}"
    if plot.energy:
        caption = f"{source}. Joules of all that the device uses, when idle too."
        return energy_figure.draw(_measured(plot), stem, title=plot.title, caption=caption)
    if plot.lines:
        panels = [
            Panel(title, tuple(_points(plot, *where)))
            for title, where in zip(plot.panels, _places(plot), strict=True)
        ]
        dated = any(point.kind == "reference" for panel in panels for point in panel.points)
        caption = f"{source}.{' Dotted: dated figures, not of this run.' * dated}"
        wide = {} if plot.width is None else {"width": plot.width}
        return draw_panels(panels, stem, title=plot.title, caption=caption, **wide)
    points = [Point(_named(row.contender), row.n, row.gflops, row.roofline_gflops) for row in rows]
    return draw(points, stem, title=plot.title, subtitle=source)


def _measured(plot: Plot) -> dict[str, Sequence[Row]]:
    """Of each line the rows that have joules, the best at every order."""
    found = {name: [plot.best(name, point) for point in plot.group.points] for name in plot.lines}
    return {name: [row for row in rows if isinstance(row, Row) and row.joules > 0] for name, rows in found.items()}


def _places(plot: Plot) -> list[tuple[Group, int]]:
    """Of each panel the group, and which of its batches."""
    if plot.beside:
        return [(group, 0) for group in (plot.group, *plot.beside)]
    return [(plot.group, place) for place in range(len(plot.panels))]


def _points(plot: Plot, group: Group, place: int) -> Iterator[Point]:
    """Those of one panel: of each line the best at every order, then the references."""
    first, cases = group.published()[0], [(n, batches[place]) for n, batches in group.cases]
    for name in plot.lines:
        for case in cases:
            if row := plot.best(name, case, group):
                kind = "own" if name in plot.own else "peer"
                yield Point(name, row.n, row.gflops, getattr(row, "roofline_gflops", math.nan), kind)
    others = {each.library for each in references()} - set(plot.references)
    for n, batch in cases:
        for dated in lines(getattr(first, "gpu", ""), first.dtype, others, [n], batch):
            yield Point(_named(dated.library), dated.n, dated.gflops, math.nan, "reference")


def _named(contender: str) -> str:
    return _NAMES.get(contender, contender)
