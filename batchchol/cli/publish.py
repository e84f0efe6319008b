"""`python -m batchchol publish`: the suite's results over commits as one page, which loads nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from batchchol.asv_plugin import page
from batchchol.asv_plugin.results import load_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the results are, and where the page goes."""
    parser.add_argument("--results", type=Path, default=Path(".asv/results"), help="default: .asv/results")
    parser.add_argument("--machine", help="only this machine's; default: all")
    parser.add_argument("--out", type=Path, default=Path(".asv/history.html"), help="default: .asv/history.html")


def run(arguments: argparse.Namespace) -> int:
    """Write the page, and say what is on it."""
    for machine in page.write(load_results(arguments.results, arguments.machine), arguments.out):
        points = sum(len(table.series) for table in machine.tables)
        print(f"{machine.name}: {points:,} points of {len(machine.commits)} commits")
    print(f"saved {arguments.out}")
    return 0
