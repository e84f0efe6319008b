"""What every family of GPU kernels is held to, emulated: the residual bound, and LAPACK in float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from batchchol.residual import RATIO_BOUND, ratios
from kernelgen import KernelSource, KernelSpec

from .cuda_kernels import EmulatedKernel
from .kernel_runs import check_other_triangle, run_kernel
from .matrices import DATA, reference

# Lines of generated code that are compiled together.
PROGRAM_LINES = 5_000
# Matrices in a batch that differ, a number prime to every number of threads: each takes its turn in every lane.
DISTINCT = 37
# The distance from LAPACK in float64 that rounding explains, in units of (n + 1) u times the condition number.
FORWARD_BOUND = {"ieee": 1.0, "fast": 4.0}


def check_kernel(
    spec: KernelSpec, batch: int, chunk: int | None = None, kernel: EmulatedKernel | None = None
) -> None:
    """A batch of each kind of data: the residual, the distance from LAPACK, and the same bits in every thread."""
    distinct, math = min(batch, DISTINCT), spec.schedule.math
    for name in DATA:
        expected = reference(name, distinct, spec.problem.n, spec.problem.dtype)
        run = run_kernel(spec, expected.a[np.arange(batch) % distinct], chunk, kernel=kernel)
        assert not run.info.any(), name
        assert ratios(expected.a, run.l[:distinct]).max() <= RATIO_BOUND[math], name
        assert expected.distance(run.l[:distinct]).max() <= FORWARD_BOUND[math], name
        check_other_triangle(spec, run.l)
        repeated = np.tril(run.l[:distinct])[np.arange(batch) % distinct]
        assert np.array_equal(np.tril(run.l), repeated), f"{name}: the result depends on the thread"


def compiled_together(sources: Iterable[KernelSource]) -> Mapping[str, tuple[KernelSource, ...]]:
    """The sources that are compiled together with that of each entry: neighbours, of equal flags."""
    groups: list[list[KernelSource]] = []
    for source in dict.fromkeys(sources):
        room = groups and groups[-1][0].flags == source.flags and _lines(groups[-1]) < PROGRAM_LINES
        groups[-1:] = [[*groups[-1], source]] if room else [*groups[-1:], [source]]
    return {source.entry: tuple(group) for group in groups for source in group}


def _lines(sources: Sequence[KernelSource]) -> int:
    return sum(source.text.count("\n") for source in sources)
