"""`python -m batchchol suite`: `asv run` on the points of a profile alone; the others are not shown."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from batchchol import interrupts
from batchchol.asv_plugin import suite
from batchchol.asv_plugin.log import Entry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is measured, and asv's own arguments."""
    parser.add_argument("--profile", choices=("quick", "ci", "full"), help="default: BATCHCHOL_PROFILE, else quick")
    parser.add_argument("--backend", choices=("cuda", "cpu"), help="default: BATCHCHOL_BACKEND, else the profile's")
    parser.add_argument("--bench", action="append", default=[], metavar="REGEX", help="only points that match one")
    parser.add_argument("asv", nargs="*", help="what `asv run` takes: commits (default HEAD^!); its options after --")


def run(arguments: argparse.Namespace) -> int:
    """Run asv; its exit status is the command's."""
    subject = suite.find_subject(Path.cwd())
    chosen = {"BATCHCHOL_PROFILE": arguments.profile, "BATCHCHOL_BACKEND": arguments.backend}
    environment = os.environ | {name: value for name, value in chosen.items() if value}
    with interrupts.advice("commits that were measured are kept: -- --skip-existing leaves them out"):
        return suite.run_asv(subject, arguments.asv or ["HEAD^!"], environment, _show, arguments.bench)


def _show(entry: Entry) -> None:
    print(entry, end="", flush=True)
