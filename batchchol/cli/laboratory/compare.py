"""`python -m batchchol compare`: the library against every peer that is installed, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from batchchol.backends import Backend, get_backend
from batchchol.batches.sizes import counts, integers, names, positive, sizes
from batchchol.cli import interrupts
from batchchol.cli.laboratory import compare_gpu
from batchchol.cli.options import BACKEND, DTYPE, declare, option
from batchchol.compare import comparison, known_kernels
from batchchol.compare.comparison import ARENAS, Outcome
from batchchol.compare.peers import Peer, find
from batchchol.compare.peers.cusolverdx import EARLY_PEER, PEER, limited
from batchchol.compare.rows import table
from batchchol.errors import BatchcholError
from batchchol.files import check_folder, check_made
from batchchol.report import gflops_plot
from kernelgen.operations import OPERATIONS, POTRF
from kernelgen.problem import MATHS

PROTOCOLS = ("queued", "single")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is compared, and where the results go."""
    declare(
        parser,
        BACKEND,
        option("--op", default=POTRF.name, choices=tuple(ARENAS), help="the operation (default: %(default)s)"),
        option("--nrhs", type=positive, help="right-hand sides of each matrix, of a solve (default: 1)"),
        option("--n", type=integers, metavar="N,...", help="orders, such as 8,16-20 (default: a selection)"),
        option(
            "--batch",
            type=sizes,
            metavar="B,...",
            help="matrices in a batch (default: 16384); on a GPU also several, and memory to fill "
            "(default: 1024,16384,2GiB)",
        ),
        option("--threads", type=counts, metavar="T,...", help="a CPU's numbers of threads (default: 1 and all)"),
        option("--samples", type=positive, default=20, help="timed calls of each (default: %(default)s)"),
        DTYPE,
        option(
            "--peers",
            type=lambda text: tuple(map(str.strip, text.split(","))),
            metavar="PEER,...",
            help="names (default: all that are installed)",
        ),
        option(
            "--blocks",
            type=positive,
            metavar="B",
            help="blocks of cuSOLVERDx that are tried, the likeliest first; each compiles for a while (default: all)",
        ),
        option(
            "--math", type=names(MATHS), metavar="LIST", help="accuracy of the library's GPU kernels (default: fast)"
        ),
        option("--protocol", type=names(PROTOCOLS), metavar="LIST", help="queued, single on a GPU (default: both)"),
        option(
            "--tuned",
            type=Path,
            action="append",
            metavar="FILE",
            help="a tuning run whose best GPU kernels take part",
        ),
        option(
            "--ways",
            action="store_true",
            default=None,
            help="have the fastest of all ways to factor orders above 128 on a GPU take part; compiles for minutes",
        ),
        option(
            "--joules",
            type=positive,
            nargs="?",
            const=5,
            metavar="SECONDS",
            help="measure the energy of calls too, repeated so long (default: 5), by the GPU's or the CPU's counter",
        ),
        option(
            "--out",
            type=Path,
            help="rows are added as they are measured; those of the same commit are not measured again "
            "(default: compare.csv, on a GPU compare_cuda.csv, of another operation such as compare_potrs.csv)",
        ),
        option("--plot", type=Path, metavar="FOLDER", help="draw GFLOP/s over n there, as PNG and SVG"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare, print the table and draw the plots."""
    backend = get_backend(arguments.backend)
    on_gpu = backend.name == "cuda"
    # Checked before hours of measuring, not after.
    out = arguments.out or Path(
        "compare" + "_cuda" * on_gpu + f"_{arguments.op}" * (arguments.op != POTRF.name) + ".csv"
    )
    check_made(out)
    if arguments.plot is not None:
        gflops_plot.require_matplotlib()
        check_folder(arguments.plot)
    _check(arguments, on_gpu)
    try:
        with interrupts.advice(f"finished points are kept in {out}, the same command goes on from there"):
            _print(_compared(arguments, backend, out), arguments.plot, on_gpu)
    except ValueError as error:
        raise BatchcholError(str(error)) from error
    return 0


def _check(arguments: argparse.Namespace, on_gpu: bool) -> None:
    """Refuse options that do not apply to the backend."""
    place, foreign = ("a GPU", ("threads",)) if on_gpu else ("a CPU", ("blocks", "math", "protocol", "tuned", "ways"))
    for name in foreign:
        if getattr(arguments, name) is not None:
            raise BatchcholError(f"--{name}: on {place} there is no such choice: leave it out")
    solves, factors = OPERATIONS[arguments.op].has_columns, arguments.op == POTRF.name
    for name, wrong in (("nrhs", not solves), ("tuned", not factors), ("ways", not factors)):
        if wrong and getattr(arguments, name) is not None:
            raise BatchcholError(f"--{name}: of {arguments.op} there is no such choice: leave it out")
    batches = arguments.batch or ["1"]
    if not on_gpu and (len(batches) != 1 or not batches[0].isdecimal()):
        raise BatchcholError(f"--batch: got {','.join(batches)}, expected one number of matrices on a CPU")


def _compared(arguments: argparse.Namespace, backend: Backend, out: Path) -> Outcome:
    return comparison.compare(
        backend,
        _peers(arguments, backend),
        op=arguments.op,
        nrhs=arguments.nrhs or 1,
        ns=arguments.n,
        sizes=arguments.batch,
        threads=arguments.threads,
        samples=arguments.samples,
        dtype=arguments.dtype,
        maths=arguments.math,
        protocols=arguments.protocol,
        known=[each for path in arguments.tuned or () for each in known_kernels.read(path)],
        searched=bool(arguments.ways),
        joules=float(arguments.joules or 0),
        required=arguments.peers is not None,
        out=out,
    )


def _peers(arguments: argparse.Namespace, backend: Backend) -> list[Peer]:
    found, most = find(backend.name, arguments.peers), arguments.blocks
    return [limited(peer, most) if most and peer in (PEER, EARLY_PEER) else peer for peer in found]


def _print(outcome: Outcome, plots: Path | None, on_gpu: bool) -> None:
    print(table(outcome.rows), end="")
    print(compare_gpu.footer(outcome) if on_gpu else footer(outcome), end="")
    if plots is not None and outcome.rows:
        for path in compare_gpu.draw(outcome, plots) if on_gpu else draw(outcome, plots):
            print(f"plot: {path}")


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """GFLOP/s over n on a CPU: one plot, in two formats, for each number of threads."""
    written: list[Path] = []
    for threads in sorted({row.threads for row in outcome.rows}):
        rows = [row for row in outcome.rows if row.threads == threads]
        points = [gflops_plot.Point(row.contender, row.n, row.gflops, row.roofline_gflops) for row in rows]
        first = rows[0]
        title = f"{first.subject}, {first.dtype}, batch {first.batch:,}, {_threads(threads)}, {first.protocol}"
        stem = folder / f"compare{first.stem}-{first.dtype}-batch{first.batch}-threads{threads}"
        written += gflops_plot.draw(points, stem, title=title, subtitle=first.machine)
    return written


def footer(outcome: Outcome) -> str:
    """Where the numbers of a comparison on a CPU come from."""
    rows = outcome.rows
    floors = {row.threads: row.floor_seconds for row in rows}
    calls = ", ".join(f"{seconds * 1e6:.1f} us on {_threads(count)}" for count, seconds in sorted(floors.items()))
    lines = [
        "",
        f"protocol: {_each(row.protocol for row in rows)}; times are medians of {_each(row.samples for row in rows)} "
        "calls, spread is the interquartile range over the median",
        f"floor: an empty call takes {calls}",
        f"machine: {_each(row.machine for row in rows)}; commit: {_each(row.commit or 'unknown' for row in rows)}; "
        f"date: {_each(row.date for row in rows)}",
        *sorted({f"{row.contender}: {row.version}" for row in rows}),
    ]
    return "\n".join(lines) + "\n"


def _each(values: Iterable[str | int]) -> str:
    """The distinct values, sorted."""
    return ", ".join(map(str, sorted(set(values))))


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"
