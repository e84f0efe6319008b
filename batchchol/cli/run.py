"""`python -m batchchol run`: the main job, end to end."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

HELP = "the main job: data, generation, compile, check, the quick benchmarks, a table and a plot"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the results go and how much is measured."""
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the table and the plot")
    parser.add_argument("--backend", choices=("cuda", "cpu"), help="default: BATCHCHOL_BACKEND, else cuda, else cpu")
    parser.add_argument("--profile", default="quick", choices=("quick", "ci", "full"), help="what asv measures")


def run(arguments: argparse.Namespace) -> int:
    """Run every step; the first that fails ends it and says why."""
    from batchchol import machine, mainjob, plots
    from batchchol.backends import fastest_backend

    plots.require_matplotlib()
    arguments.out.mkdir(parents=True, exist_ok=True)
    backend, why_no_gpu = fastest_backend(arguments.backend)
    described = machine.describe(backend.device())
    _say(f"machine   {described.cpu}, {described.simd}, {described.num_cpu} cores, {described.ram}")
    if backend.name == "cuda":
        _say(f"GPU       {described.gpu}, driver {described.driver}, {described.toolkit}")
    elif why_no_gpu:
        _say(f"backend   cpu, since {why_no_gpu}")
    mainjob.demonstrate(backend, _say)
    machine.save(described, machine.machine_file())
    environment = os.environ | {"BATCHCHOL_PROFILE": arguments.profile, "BATCHCHOL_BACKEND": backend.name}
    _say(f"suite     asv, profile {arguments.profile!r}, on the last commit")
    commit = mainjob.run_suite(Path.cwd(), described.machine, environment, arguments.out / "asv.log", _say)
    results = Path.cwd() / ".asv" / "results"
    _say(mainjob.summary(results, described.machine, commit, backend, arguments.out))
    return 0


def _say(text: str) -> None:
    print(text, flush=True)
