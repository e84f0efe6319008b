"""`python -m batchchol machine`: tell asv about this machine."""

from __future__ import annotations

import argparse

from batchchol.backends import get_backend
from batchchol.cli.options import declare, option
from batchchol.measure.machine import describe, find_devices, machine_file, save


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    declare(
        parser,
        option("--name", help="name of the machine in asv's results (default: made of the hardware)"),
        option("--backend", help="backend to describe (default: all that can be used)"),
        option("--print", action="store_true", dest="show_only", help="show the entry, write nothing"),
    )


def run(args: argparse.Namespace) -> int:
    """Describe the machine, write its entry unless `--print`, and show it."""
    device, missing = (get_backend(args.backend).device(), []) if args.backend else find_devices()
    machine = describe(device, args.name)
    for field, value in machine.items():
        print(f"{field:12} {value or '-'}")
    for reason in missing:
        print(f"\n{reason}")
    if args.show_only:
        return 0
    path = machine_file()
    print(f"\n{'written to' if save(machine, path) else 'already in'} {path}")
    print(f"use it with: asv run --machine {machine['machine']}")
    return 0
