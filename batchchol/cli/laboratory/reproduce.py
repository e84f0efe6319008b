"""`python -m batchchol reproduce`: published claims, measured again on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from batchchol.asv_plugin.reproduce import page
from batchchol.asv_plugin.reproduce.cases import chosen
from batchchol.asv_plugin.reproduce.kept import Here, Kept
from batchchol.asv_plugin.reproduce.run import Machine
from batchchol.asv_plugin.reproduce.run import run as measured
from batchchol.asv_plugin.reproduce.verdicts import status, undecided
from batchchol.backends import Backend, get_backend
from batchchol.batches.sizes import duration
from batchchol.cli import interrupts
from batchchol.cli.options import declare, option
from batchchol.errors import BackendUnavailable
from batchchol.files import make_folder
from batchchol.measure.machine import stable_name
from batchchol.measure.provenance import about
from batchchol.report.claims.listed import load

_BACKENDS = ("cpu", "cuda")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which claims, where, how long, and where the answer goes."""
    declare(
        parser,
        option(
            "--only",
            action="append",
            default=[],
            metavar="CLAIM",
            help="a claim's name or a pattern, such as 'epyc/n8/*'; may be given again (default: all)",
        ),
        option("--backend", choices=_BACKENDS, help="only claims of this one (default: of all that can be used)"),
        option("--budget", type=duration, default=600.0, metavar="TIME", help="for measuring, as 10m (default: 10m)"),
        option("--root", type=Path, default=Path(), help="the clone that has the claims (default: this folder)"),
        option(
            "--out",
            type=Path,
            default=Path("reproduced"),
            help="folder of reproduced.html and of measured.jsonl, from which the same command goes on "
            "(default: reproduced)",
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and judge claims; the exit status is `verdicts.status`."""
    claims = chosen(load(arguments.root), arguments.only)
    usable, unusable = _backends([arguments.backend] if arguments.backend else _BACKENDS)
    make_folder(arguments.out)
    found = {name: value for backend in usable.values() for name, value in about(backend).items()}
    # A comparison on a CPU calls its machine by what the CPU's backend knows of it.
    here = Here(stable_name(next(iter(usable.values())).device()), found.get("gpu", ""), found["commit"])
    machine = Machine(usable, unusable, Kept(arguments.out / "measured.jsonl", here))
    with interrupts.advice("what was measured is kept: run the same command again to go on"):
        judged = measured(claims, machine, arguments.budget, _say)
    print(page.table(judged), end="")
    path = arguments.out / "reproduced.html"
    page.write(judged, {"machine": here.machine, **found}, path)
    print(f"saved {path}")
    if undecided(judged) and (load_now := os.getloadavg()[0]) > (cores := os.cpu_count() or 1) + 1:
        print(f"This machine is busy (load {load_now:.0f} on {cores} cores): run the same command when it is idle.")
    return status(judged)


def _backends(names: tuple[str, ...] | list[str]) -> tuple[dict[str, Backend], dict[str, str]]:
    """The backends of some names that can be used, and why the others cannot.

    Raises
    ------
    BackendUnavailable
        If none can be used.
    """
    usable, unusable = dict[str, Backend](), dict.fromkeys(_BACKENDS, "--backend is another one")
    for name in names:
        try:
            usable[name] = get_backend(name)
        except BackendUnavailable as error:
            unusable[name] = str(error)
    if not usable:
        raise BackendUnavailable("; ".join(unusable[name] for name in names))
    return usable, unusable


def _say(line: str) -> None:
    """Tell how far it is, beside the answer."""
    print(line, file=sys.stderr, flush=True)
