"""`python -m batchchol run`: the main job, end to end."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

HELP = "the main job: data, generation, compile, check, the quick benchmarks, a table and a plot"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the results go and how much is measured."""
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the table and the plot")
    parser.add_argument("--profile", default="quick", choices=("quick", "ci", "full"), help="what asv measures")


def run(arguments: argparse.Namespace) -> int:
    """Run every step; stops at the first that fails."""
    from batchchol import machine, mainjob
    from batchchol.asv_results import load_results
    from batchchol.backends import get_backend
    from batchchol.cache import replace_file
    from batchchol.plots import Line, plot_lines
    from batchchol.roofline import measured_ceilings

    def say(text: str) -> None:
        print(text, flush=True)

    backend = get_backend()
    described = machine.describe(backend.device())
    say(f"machine   {described.cpu}, {described.simd}, {described.num_cpu} cores, {described.ram}")
    mainjob.demonstrate(backend, say)
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine.save(described, machine.machine_file())
    environment = os.environ | {"BATCHCHOL_PROFILE": arguments.profile}
    folder = Path.cwd()
    mainjob.run_suite(folder, described.machine, environment, arguments.out / "asv.log", say)
