"""`python -m batchchol tune --space`: a search space compiled, measured and kept."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchchol.batches.sizes import integer, name, positive, seconds
from batchchol.cli import interrupts
from batchchol.cli.laboratory.tune import search
from batchchol.cli.options import JOBS, declare, option
from batchchol.errors import BatchcholError, install
from batchchol.files import check_folder, check_writable
from batchchol.measure import dataset, parquet, shared_code, t4
from batchchol.measure.dataset import DataSet, read_rows
from batchchol.measure.point import Point
from batchchol.progress import ProgressDisplay
from batchchol.tune.choosing import learn
from batchchol.tune.choosing.winners import again
from batchchol.tune.compile import Built
from batchchol.tune.executors import Place, place
from batchchol.tune.expand import Expansion, Machine, expand
from batchchol.tune.space import SPACES, load_space
from batchchol.tune.sweep import Summary

_GO_ON = "compiled kernels and measured points are kept, the same command goes on from there"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a sweep."""
    group = parser.add_argument_group(
        "a search space",
        "With --space every point of a search space is measured, in processes that may crash, and kept in a data "
        "set; after an interrupt, a crash or a reboot the same command goes on where it was. --n, --dtype, --math, "
        "--layout, --family and --batch narrow it.",
    )
    declare(
        group,
        option("--space", type=name, metavar="NAME", help=f"{', '.join(SPACES)}, or a file *.toml"),
        option("--data", type=Path, metavar="FOLDER", help="where the data set is kept (default: the space's)"),
        option("--compile-only", action="store_true", help="compile its kernels, for --arch; needs no GPU"),
        JOBS,
        option(
            "--compile-limit",
            type=seconds,
            default=120.0,
            metavar="SECONDS",
            help="of a compiler, in s (default: 120)",
        ),
        option("--time-limit", type=seconds, metavar="SECONDS", help="of a point, in s (default: 60, on a CPU 600)"),
        option(
            "--for", dest="duration", type=seconds, metavar="SECONDS", help="stop measuring after this many seconds"
        ),
        option(
            "--finalists",
            type=integer,
            choices=range(11),
            default=3,
            metavar="COUNT",
            help="how many of the best of each case are measured again with their own code (default: 3)",
        ),
        option("--t4", type=Path, metavar="FILE", help="also write the data set as T4 results (JSON)"),
        option("--samples", type=positive, default=20, help="of a point (default: 20)"),
        option(
            "--cluster",
            type=name,
            metavar="ADDRESS",
            help="compile and measure on the workers of a dask scheduler, such as tcp://host:8786, or with 'local' "
            "on all GPUs of this machine",
        ),
        option(
            "--workers",
            type=positive,
            help="how many of --cluster local (default: one for each GPU); on CPUs how many of a host measure at a "
            "time (default: 1)",
        ),
    )


def run(arguments: argparse.Namespace, narrow: Mapping[str, Any]) -> int:
    """Compile, measure, merge; 0 if every point of the space is done, 3 if some are left.

    Without a space the data set is merged and exported alone. `narrow` are the values of n, dtype, math,
    layout, family and batch to keep; None keeps all.
    """
    for given, needed, message in (
        (arguments.workers, arguments.cluster, "--workers: got no --cluster, say whose workers"),
        (arguments.cluster, arguments.space, "--cluster: got no --space, say what to measure there"),
        (True, arguments.space or arguments.data, "--t4: got no --data, say which data set"),
        (
            arguments.compile_only and arguments.space,
            arguments.arch,
            "--compile-only: got no --arch, say for which GPUs, such as sm_90",
        ),
    ):
        if given and not needed:
            raise BatchcholError(message)
    _check_outputs(arguments)
    if not arguments.space:
        _export(arguments.data, arguments.t4)
        return 0

    space = load_space(arguments.space)
    folder = arguments.data or Path(space.name)
    with interrupts.advice(_GO_ON), place(arguments, folder, _tell) as here:
        if arguments.compile_only:
            expansion = expand(space, Machine.cuda(), **narrow)
            _introduce(space.name, expansion)
            return _say_built(_built(here, expansion.points, arguments.arch, arguments))
        expansion = expand(space, Machine.of(here.facts(), arguments.threads), **narrow)
        return _sweep(arguments, space.name, folder, expansion, here)


def _sweep(arguments: argparse.Namespace, space: str, folder: Path, expansion: Expansion, here: Place) -> int:
    with _learning_at_the_end(arguments, folder, here), DataSet(folder, here.device, _warn) as data:
        _introduce(space, expansion)
        # A kernel of any block may turn out to be too large for a point, which then has its own.
        pending = [point for point in expansion.points if point.known_as(data.done) is None]
        if search.wanted(arguments):
            summary = search.search(arguments, space, expansion.points, here, data)
        else:
            print(f"{folder}: {len(data.done):,} points are there, {len(pending):,} are to do", file=sys.stderr)
            summary = _measure(arguments, space, pending, here, data)
        if arguments.finalists and not summary.left and data.done:
            left = [point for point in again(read_rows(folder), arguments.finalists) if point.key not in data.done]
            if left:
                print(f"{len(left):,} finalists are measured with code of their own", file=sys.stderr)
            summary = summary.plus(_measure(arguments, space, left, here, data))
    statuses = ", ".join(f"{count:,} {status}" for status, count in summary.statuses.most_common())
    print(f"measured: {statuses or 'nothing'}; {summary.left:,} points left")
    _export(folder, arguments.t4)
    return 3 if summary.left else 0


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Check that the outputs can be written, before anything is measured."""
    if arguments.t4:
        check_writable(arguments.t4)
    if arguments.data and (arguments.space or arguments.data.is_dir()):
        check_folder(arguments.data)
        if not arguments.compile_only:
            check_writable(_merged(arguments.data))


def _merged(folder: Path) -> Path:
    """The Parquet file of a data set's folder: beside it, with its name."""
    # Such as ".." has no name of its own.
    folder = folder if folder.name.strip(".") else folder.resolve()
    if not folder.name:
        raise BatchcholError(f"--data: got {str(folder)!r}, expected a folder that has a name")
    return folder.with_name(f"{folder.name}.parquet")


@contextmanager
def _learning_at_the_end(arguments: argparse.Namespace, folder: Path, here: Place) -> Iterator[None]:
    """Update the user's table from the data set at the end; after an interrupt without measuring more."""
    try:
        yield
    except KeyboardInterrupt:
        learn.keep(arguments, folder, here.facts(), None, _warn)
        raise
    learn.keep(arguments, folder, here.facts(), here.measurer, _warn)


def _measure(
    arguments: argparse.Namespace, space: str, points: Sequence[Point], here: Place, data: DataSet
) -> Summary:
    built = _built(here, points, here.facts()["architecture"], arguments)
    with ProgressDisplay(sys.stderr, "measuring") as display:
        return here.sweep(
            built.points, data, space=space, failed=built.failed, seconds=arguments.duration, show=display
        )


def _export(data: Path, t4_file: Path | None) -> None:
    """Merge a folder's rows, and write them as T4 results if that is asked for; `data` may be a merged file."""
    if not parquet.available():
        print(
            f"{data}: its rows are in the journal there, since pyarrow is missing: where it is not "
            f"({install('tune')}), `python -m batchchol tune --data {data}` makes a Parquet file of them"
        )
        return
    if data.is_dir():
        file = _merged(data)
        print(f"{file}: {dataset.merge(data, file, _warn):,} rows")
    if t4_file:
        print(f"{t4_file}: {t4.export(dataset.read(data, _warn), t4_file):,} results")


def _built(here: Place, points: Sequence[Point], arch: str | None, arguments: argparse.Namespace) -> Built:
    with ProgressDisplay(sys.stderr, "compiling") as display:
        return here.build(points, arch, jobs=arguments.jobs, time_limit=arguments.compile_limit, show=display)


def _introduce(space: str, expansion: Expansion) -> None:
    kernels = len({shared_code.identity(point) for point in expansion.points})
    words = f"space {space}: {len(expansion.points):,} points of {kernels:,} kernels"
    if refused := expansion.unsupported.total():
        words += f"; {refused:,} combinations are unsupported"
    print(words, file=sys.stderr)
    for reason, count in expansion.unsupported.most_common():
        print(f"  {count:,}: {reason}", file=sys.stderr)


def _say_built(built: Built) -> int:
    print(f"{len(built.points):,} points have their kernels, {len(built.failed):,} have none")
    for row in built.failed[:3]:
        print(f"{row.status}: {row.point.spec.name}: {row.message}", file=sys.stderr)
    return 1 if built.failed else 0


def _warn(message: str) -> None:
    print(f"batchchol: warning: {message}", file=sys.stderr)


def _tell(message: str) -> None:
    print(f"cluster: {message}", file=sys.stderr)
