"""`python -m batchchol run`: the main job, end to end."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from batchchol import interrupts
from batchchol.asv_plugin import suite
from batchchol.backends import fastest_backend
from batchchol.cli import mainjob
from batchchol.cli.options import declare, option
from batchchol.files import check_writable, make_folder
from batchchol.measure import machine
from batchchol.report import gflops_plot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the results go and how much is measured."""
    declare(
        parser,
        option("--out", type=Path, default=Path("results"), help="folder of the table and the plot"),
        option("--backend", choices=("cuda", "cpu"), help="default: BATCHCHOL_BACKEND, else cuda, else cpu"),
        option("--profile", default="quick", choices=("quick", "ci", "full"), help="what asv measures"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Run every step; the first that fails ends it and says why."""
    gflops_plot.require_matplotlib()
    make_folder(arguments.out)
    check_writable(arguments.out / "table.md")
    subject = suite.find_subject(Path.cwd())
    backend, why_no_gpu = fastest_backend(arguments.backend)
    described = machine.describe(backend.device())
    _say(f"machine   {described['cpu']}, {described['simd']}, {described['num_cpu']} cores, {described['ram']}")
    if backend.name == "cuda":
        _say(f"GPU       {described['gpu']}, driver {described['driver']}, {described['toolkit']}")
    elif why_no_gpu:
        # The device files of the driver on Linux, and on Windows' subsystem for it.
        gpu_present = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))
        _say(f"backend   cpu, since {why_no_gpu if gpu_present else 'there is no NVIDIA GPU'}")
    mainjob.demonstrate(backend, _say)
    machine.save(described, machine.machine_file())
    environment = os.environ | {"BATCHCHOL_PROFILE": arguments.profile, "BATCHCHOL_BACKEND": backend.name}
    timed = [mainjob.time_shown(backend)]
    _say(f"suite     asv, profile {arguments.profile!r}, on {subject.described}")
    with interrupts.advice("compiled kernels are kept, run the same command again to measure all of the suite"):
        suite.run_suite(subject, described["machine"], environment, arguments.out / "asv.log", _say)
    timed.append(mainjob.time_shown(backend))
    _say(mainjob.summary(subject.results, described["machine"], subject.commit, backend, arguments.out, timed))
    return 0


def _say(text: str) -> None:
    print(text, flush=True)
