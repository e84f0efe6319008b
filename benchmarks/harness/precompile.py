"""The GPU kernels that a profile measures, compiled on a machine without a GPU.

    BATCHCHOL_PROFILE=ci python -m benchmarks.harness.precompile --arch sm_90

Then `python -m batchchol cache pack` carries them to a machine that has no compiler.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.discovery import disc_benchmarks

from . import grid, library, profiles
from .cases import planned
from .grid import CUDA

# Not the library's: commits that are measured have it in different places.
WARP_THREADS = 32


def blueprint(arch: str | None = None) -> Any:
    """A stand-in for the backend of an architecture: what a plan needs of it that needs no GPU."""
    from batchchol.defaults.lookup import default_layout

    return SimpleNamespace(
        name="cuda",
        target="cuda",
        architecture=arch,
        lanes=lambda dtype: WARP_THREADS,
        default_layout=lambda n, dtype, batch: default_layout(n, target="cuda", dtype=dtype, arch=arch, batch=batch),
        unsupported=lambda spec, layout: None,
    )


def measured_specs(profile: str, arch: str | None = None) -> Iterator[library.KernelSpec]:
    """The specs of all kernels that a profile measures on an architecture, some of them several times."""
    backend = blueprint(arch)
    for benchmark in disc_benchmarks(str(Path(__file__).parents[1])):
        question = benchmark.func.__self__
        names = question.param_names
        if not {"n", "math", "backend"} <= set(names):
            continue
        for named in profiles.kept_points(profile, type(question).__name__, names, question.params, *CUDA):
            with suppress(SkipNotImplemented):
                point = grid.point_of(named)
                yield getattr(question, "planned", planned)(point, backend).spec


def main(arguments: list[str] | None = None) -> int:
    """Compile them, and what goes with them; 1 if a kernel failed."""
    # Not at the top: asv imports every module of the suite, on commits that lack these as well.
    from batchchol.artifacts.cuda_modules import build_all
    from batchchol.progress import ProgressDisplay
    from kernelgen.emit.support import support_kernels

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", required=True, help="the architecture of the GPU, such as sm_90")
    arch = parser.parse_args(arguments).arch
    specs = dict.fromkeys(measured_specs(profiles.profile(), arch))
    with ProgressDisplay(sys.stderr, arch) as display:
        outcomes = build_all([*map(library.generate_source, specs), *support_kernels()], arch, progress=display)
    failed = [outcome for outcome in outcomes if outcome.status != "built"]
    for outcome in failed:
        print(f"{outcome.status}: {outcome.entry}: {outcome.message}", file=sys.stderr)
    print(f"{len(outcomes) - len(failed)} kernels of profile {profiles.profile()!r} are ready for {arch}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
