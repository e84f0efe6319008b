"""`python -m batchchol suite`: `asv run` on the points of a profile alone; the others are not shown."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchchol.asv_plugin import suite
from batchchol.asv_plugin.history.due import measured_texts
from batchchol.asv_plugin.history.store import opened
from batchchol.asv_plugin.log import Entry
from batchchol.asv_plugin.results import load_results
from batchchol.batches.sizes import positive
from batchchol.cli import interrupts
from batchchol.cli.commits.history import STORE, ago
from batchchol.errors import BatchcholError

_LAST = "HEAD^!"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is measured, and asv's own arguments."""
    parser.add_argument("--profile", choices=("quick", "ci", "full"), help="default: BATCHCHOL_PROFILE, else quick")
    parser.add_argument("--backend", choices=("cuda", "cpu"), help="default: BATCHCHOL_BACKEND, else the profile's")
    parser.add_argument("--bench", action="append", default=[], metavar="REGEX", help="only points that match one")
    help_of_due = "leave out kernels whose text was measured on this machine in the last DAYS"
    parser.add_argument("--due", type=positive, metavar="DAYS", help=help_of_due)
    parser.add_argument("asv", nargs="*", help="what `asv run` takes: commits (default HEAD^!); its options after --")


def run(arguments: argparse.Namespace) -> int:
    """Run asv, and add its results to the history; its exit status is the command's."""
    subject = suite.find_subject(Path.cwd())
    chosen = {"BATCHCHOL_PROFILE": arguments.profile, "BATCHCHOL_BACKEND": arguments.backend}
    environment = os.environ | {name: value for name, value in chosen.items() if value}
    asv = arguments.asv or [_LAST]
    if arguments.due is not None and not asv[0].startswith(("-", _LAST)):
        raise BatchcholError(f"--due: got commits {asv[0]!r}, expected none: it compares the last commit's kernels")
    with (
        interrupts.advice("commits that were measured are kept: -- --skip-existing leaves them out"),
        _known(subject, arguments.due) as known,
    ):
        try:
            status = suite.run_asv(subject, asv, environment, _show, arguments.bench, known)
        except suite.NothingDue as message:
            print(message)
            return 0
    _keep(subject)
    return status


def _show(entry: Entry) -> None:
    print(entry, end="", flush=True)


def _store(subject: suite.Subject) -> Path:
    return subject.results.parent / STORE


@contextmanager
def _known(subject: suite.Subject, due: int | None) -> Iterator[Path | None]:
    """A file of the kernel texts that are not due; None if all are."""
    if due is None or not _store(subject).exists():
        yield None
        return
    from asv.machine import Machine

    with opened(_store(subject)) as store:
        texts = measured_texts(store, Machine.get_unique_machine_name(), ago(due))
    with tempfile.TemporaryDirectory(prefix="batchchol-due-") as folder:
        path = Path(folder) / "known.json"
        path.write_text(json.dumps(texts), encoding="utf-8")
        yield path


def _keep(subject: suite.Subject) -> None:
    """Add what asv measured to the store of all runs, if it measured anything."""
    if not any(subject.results.glob("*/*-*.json")):
        return
    with opened(_store(subject)) as store:
        print(f"{store.path}: {store.add(load_results(subject.results)):,} new results")
