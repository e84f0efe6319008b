"""`python -m batchchol report`: what a tuning file says: the best of each case as a table and plots."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchchol.tuning_rows import Measured

HELP = "the best schedule of each n, batch, accuracy class and protocol in a file of `tune`: a table, and plots"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to read and where to draw."""
    parser.add_argument("file", type=Path, help="a CSV file that `tune` wrote")
    parser.add_argument("--plot", type=Path, metavar="STEM", help="draw GFLOP/s over n to STEM.png and STEM.svg")


def run(arguments: argparse.Namespace) -> int:
    """Print the table, and draw."""
    from batchchol.errors import DataFileError
    from batchchol.tuning_rows import read

    rows = best(read(arguments.file))
    if not rows:
        raise DataFileError(arguments.file, "whole file", "has no correct measurement")
    print(table(rows))
    print(footer(rows))
    if arguments.plot is not None:
        for path in draw(rows, arguments.plot):
            print(f"plot: {path}")
    return 0


def best(rows: Iterable[Measured]) -> list[Measured]:
    """The fastest row of each case, of those with the most samples of the case."""
    fastest: dict[tuple[object, ...], Measured] = {}
    for row in rows:
        case = (row.n, row.dtype, row.batch, row.math, row.protocol, row.machine)
        known = fastest.get(case)
        if known is None or (-row.samples, row.seconds) < (-known.samples, known.seconds):
            fastest[case] = row
    return sorted(fastest.values(), key=lambda row: (row.dtype, row.math, row.n, row.batch, row.protocol))


def table(rows: Sequence[Measured]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| n | batch | math | protocol | GFLOP/s | roofline | floor, us | spread | residual | spec |",
        "| ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {row.n} | {row.batch:,} | {row.math} | {row.protocol} | {row.gflops:,.0f} | {row.roofline_fraction:.0%} "
        f"| {_microseconds(row.floor_seconds)} | {row.spread:.1%} | {row.ratio:.3f} | `{row.spec}` |"
        for row in rows
    ]
    return "\n".join(lines)


def _microseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{seconds * 1e6:.1f}"


def footer(rows: Sequence[Measured]) -> str:
    """Where and when, and how often each was timed."""
    machines = ", ".join(sorted({row.machine for row in rows}))
    dates = ", ".join(sorted({row.date for row in rows}))
    samples = ", ".join(map(str, sorted({row.samples for row in rows})))
    return f"\n{machines}; {dates}; medians of {samples} samples; cold data; roofline by the machine's own copy"


def draw(rows: Sequence[Measured], stem: Path) -> list[Path]:
    """GFLOP/s over n, a line for each batch of the first protocol and accuracy class; the roofline above."""
    from batchchol import plots

    first = rows[0]
    chosen = [row for row in rows if (row.dtype, row.math, row.protocol) == (first.dtype, first.math, first.protocol)]
    points = [plots.Point(_label(row, chosen), row.n, row.gflops, row.roofline_gflops) for row in chosen]
    title = f"Batched Cholesky, {first.dtype}, {first.math}, {first.protocol} launches"
    return plots.draw(points, stem, title=title, subtitle=f"{first.machine}, {first.date}, cold data, medians")


def _label(row: Measured, rows: Sequence[Measured]) -> str:
    """The batch, or "largest" where each n has one of its own that fills so much memory."""
    everywhere = {other.n for other in rows} == {other.n for other in rows if other.batch == row.batch}
    return f"batch {row.batch:,}" if everywhere else "largest batch"
