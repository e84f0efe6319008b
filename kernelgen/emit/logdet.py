"""C sources for SIMD targets of kernels that compute determinants' logarithms, the thread family."""

from __future__ import annotations

from kernelgen.emit.simd import factorization_variables
from kernelgen.emit.source import KernelSource, render
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import SIMD_TARGETS


def generate_logdet(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of one kernel that computes the logarithms of determinants.

    Its entry is `int entry(const scalar *a, scalar *logdet, int *info, long long stride, long long batch,
    long long first, long long last)`: `stride` is the distance between neighbouring elements of one matrix, `first`
    and `last` count groups of `lanes` matrices, `logdet` and `info` have room for `batch` numbers. Where an info is
    not 0 the logarithm is NaN.
    """
    variables = factorization_variables(spec, schedule, in_place=spec.layout == "canonical", apart=True)
    text = render("simd/logdet.c.jinja", **variables)
    return KernelSource(text, spec.name, spec.lanes, SIMD_TARGETS[spec.target].flags)
