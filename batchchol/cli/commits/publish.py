"""`python -m batchchol publish`: the suite's results over commits as a folder of pages that load nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from batchchol.asv_plugin.history import pages
from batchchol.cli.commits.history import add_store_arguments, filled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the results are, and where the pages go."""
    add_store_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path(".asv/history"), help="default: .asv/history")


def run(arguments: argparse.Namespace) -> int:
    """Write the pages, and say what is on them."""
    with filled(arguments) as store:
        measurements = store.measurements(arguments.machine)
    for machine in pages.write(measurements, arguments.out):
        print(f"{machine.name}: {len(machine.cases):,} cases, {len(machine.commits)} commits")
    print(f"saved {arguments.out}: open {arguments.out / 'index.html'}")
    return 0
