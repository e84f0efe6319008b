"""`python -m batchchol compare`: the library against every peer that is installed, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from batchchol import interrupts
from batchchol.batches.sizes import integers, names, positive, sizes
from batchchol.errors import BatchcholError
from kernelgen.axes import MATHS

if TYPE_CHECKING:
    from batchchol.compare.rows import Row

HELP = "time the library and its peers side by side, with the same data, clock and checks"
PROTOCOLS = ("queued", "single")
_OUT = {"cpu": Path("compare.csv"), "cuda": Path("compare_cuda.csv")}
ORDERS = (4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to compare, and where the results go."""
    parser.add_argument("--backend", help="cpu or cuda (default: BATCHCHOL_BACKEND, else cpu)")
    parser.add_argument("--n", type=integers, metavar="N,...", help="orders, such as 8,16-20 (default: a selection)")
    parser.add_argument(
        "--batch",
        type=sizes,
        metavar="B,...",
        help="matrices in a batch (default: 16384); on a GPU also several, and as many as fill so much memory "
        "(default: 1024,16384,2GiB)",
    )
    parser.add_argument(
        "--threads", type=_numbers, metavar="T,...", help="a CPU's numbers of threads (default: 1 and all)"
    )
    parser.add_argument("--samples", type=positive, default=20, help="timed calls of each (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--peers", type=_names, metavar="PEER,...", help="names (default: all that are installed)")
    parser.add_argument(
        "--math", type=names(MATHS), metavar="LIST", help="accuracy of the library's GPU kernels (default: fast)"
    )
    parser.add_argument(
        "--protocol", type=names(PROTOCOLS), metavar="LIST", help="queued, single on a GPU (default: both)"
    )
    parser.add_argument(
        "--tuned", type=Path, action="append", metavar="FILE", help="a tuning run whose best GPU kernels take part"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="written on the way; what it has of the same commit is not measured again "
        "(default: compare.csv, on a GPU compare_cuda.csv)",
    )
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw GFLOP/s over n there, as PNG and SVG")


def run(arguments: argparse.Namespace) -> int:
    """Compare, print the table and draw the plots."""
    from batchchol.backends import get_backend
    from batchchol.files import check_folder, check_made
    from batchchol.report import gflops_plot

    backend = get_backend(arguments.backend)
    # Known before hours of measuring, not after.
    arguments.out = arguments.out or _OUT[backend.name]
    check_made(arguments.out)
    if arguments.plot is not None:
        gflops_plot.require_matplotlib()
        check_folder(arguments.plot)
    try:
        if backend.name == "cuda":
            from batchchol.cli import compare_gpu

            with _going_on(arguments.out):
                return compare_gpu.run(_for(arguments, "a GPU", "threads"), backend)
        with _going_on(arguments.out):
            return _run_on_cpu(_for(arguments, "a CPU", "math", "protocol", "tuned"))
    except ValueError as error:
        raise BatchcholError(str(error)) from error


def _going_on(out: Path) -> AbstractContextManager[None]:
    return interrupts.advice(f"finished points are kept in {out}, the same command goes on from there")


def _for(arguments: argparse.Namespace, place: str, *foreign: str) -> argparse.Namespace:
    """The arguments, if none is given that there is no choice of."""
    for name in foreign:
        if getattr(arguments, name) is not None:
            raise BatchcholError(f"--{name}: on {place} there is no such choice: leave it out")
    return arguments


def _run_on_cpu(arguments: argparse.Namespace) -> int:
    from batchchol.compare.cpu import compare
    from batchchol.compare.rows import table

    batches = arguments.batch or ["16384"]
    if len(batches) != 1 or not batches[0].isdecimal():
        raise BatchcholError(f"--batch: got {','.join(batches)}, expected one number of matrices on a CPU")
    rows = compare(
        arguments.n or ORDERS,
        int(batches[0]),
        arguments.threads,
        arguments.samples,
        peers=arguments.peers,
        dtype=arguments.dtype,
        backend=arguments.backend,
        out=arguments.out,
    )
    print(table(rows), end="")
    print(_footer(rows), end="")
    if arguments.plot is not None:
        for path in draw(rows, arguments.plot):
            print(f"plot: {path}")
    return 0


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """One plot, in two formats, for each number of threads."""
    from batchchol.report import gflops_plot

    written: list[Path] = []
    for threads, group in groupby(sorted(rows, key=lambda row: row.threads), key=lambda row: row.threads):
        of_them = list(group)
        points = [gflops_plot.Point(row.contender, row.n, row.gflops, row.roofline_gflops) for row in of_them]
        first = of_them[0]
        title = f"Batched Cholesky, {first.dtype}, batch {first.batch:,}, {_threads(threads)}, {first.protocol}"
        stem = folder / f"compare-{first.dtype}-batch{first.batch}-threads{threads}"
        written += gflops_plot.draw(points, stem, title=title, subtitle=first.machine)
    return written


def _footer(rows: Sequence[Row]) -> str:
    """Where the numbers come from."""
    floors = {row.threads: row.floor_seconds for row in rows}
    calls = ", ".join(f"{seconds * 1e6:.1f} us on {_threads(count)}" for count, seconds in sorted(floors.items()))
    lines = [
        "",
        f"protocol: {', '.join(sorted({row.protocol for row in rows}))}; times are medians of {_counts(rows)} calls, "
        "spread is the interquartile range over the median",
        f"floor: an empty call takes {calls}",
        f"machine: {', '.join(sorted({row.machine for row in rows}))}; "
        f"commit: {', '.join(sorted({row.commit or 'unknown' for row in rows}))}; "
        f"date: {', '.join(sorted({row.date for row in rows}))}",
        *sorted({f"{row.contender}: {row.version}" for row in rows}),
    ]
    return "\n".join(lines) + "\n"


def _counts(rows: Sequence[Row]) -> str:
    return ", ".join(map(str, sorted({row.samples for row in rows})))


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(positive(word.strip()) for word in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))
