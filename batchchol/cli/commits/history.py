"""`python -m batchchol history`: keep the results of every commit, and say where they change."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchchol.asv_plugin.history.cases import Case, Machine, machines
from batchchol.asv_plugin.history.charts import change_text
from batchchol.asv_plugin.history.store import Store, opened
from batchchol.asv_plugin.results import load_results
from batchchol.batches.sizes import positive
from batchchol.errors import BatchcholError, optional
from batchchol.files import check_made

_FORMATS = (".parquet", ".csv")
_CENTURY = 36_525
# As asv's configuration says, and beside it.
_RESULTS, STORE = Path(".asv/results"), "history.sqlite"


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Where results are and are kept, and whose."""
    parser.add_argument("--results", type=Path, default=_RESULTS, help="asv's; default: .asv/results")
    parser.add_argument("--store", type=Path, help="default: history.sqlite beside the folder of results")
    parser.add_argument("--machine", help="only this machine's; default: all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is done with the store after asv's results were added to it."""
    add_store_arguments(parser)
    parser.add_argument("--export", type=Path, metavar="FILE", help="write all of it to a .parquet or .csv file")
    help_of_thin = "forget samples, and all but the last run of each point and commit, of runs older than this"
    parser.add_argument("--thin", type=positive, metavar="DAYS", help=help_of_thin)


def run(arguments: argparse.Namespace) -> int:
    """Add asv's results to the store, and print every case that changed lately or must be looked at."""
    if arguments.export:
        _check_export(arguments.export)
    with filled(arguments) as store:
        if arguments.thin is not None:
            runs, samples = store.thin(ago(arguments.thin))
            print(f"{store.path}: forgot {runs:,} runs, and the samples of {samples:,}")
        if arguments.export:
            _export(store, arguments.machine, arguments.export)
        measurements = store.measurements(arguments.machine)
    for machine in machines(measurements):
        _print(machine)
    return 0


@contextmanager
def filled(arguments: argparse.Namespace) -> Iterator[Store]:
    """The store, with what asv's results have that it lacks; without results it is left as it is, if it is there."""
    path = arguments.store or arguments.results.parent / STORE
    rows = [] if path.exists() and not arguments.results.exists() else load_results(arguments.results)
    with opened(path) as store:
        added = store.add(rows)
        print(f"{path}: {added:,} new results")
        yield store


def ago(days: int) -> datetime.datetime:
    """The time that many days ago; a century at most, which is longer than any history."""
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=min(days, _CENTURY))


def _check_export(path: Path) -> None:
    if path.suffix not in _FORMATS:
        raise BatchcholError(f"--export: got {path.name!r}, expected a file that ends in .parquet or .csv")
    optional("pandas", "a table of the history", "history")
    check_made(path)


def _export(store: Store, machine: str | None, path: Path) -> None:
    frame = store.frame(machine)
    if path.suffix == ".parquet":
        optional("pyarrow", "a Parquet file", "history")
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    print(f"saved {path}: {len(frame):,} results")


def _print(machine: Machine) -> None:
    steady = sum(case.state == "steady" for case in machine.cases)
    print(f"\n{machine.name}: {len(machine.cases):,} cases, {len(machine.commits)} commits, {steady:,} steady")
    for case in sorted(machine.cases, key=lambda case: case.state):
        if case.state != "steady":
            print(f"  {case.state:<9}  {case.benchmark}({case.label}){_said(case)}")


def _said(case: Case) -> str:
    if not case.news:
        return ""
    before, after = (case.known[index].commit.short for index in (case.news.index - 1, case.news.index))
    return f"  {change_text(case.news.ratio)} between {before} and {after}"
