"""Sources of kernels that compute determinants' logarithms, the thread family: C for SIMD targets, CUDA for GPUs."""

from __future__ import annotations

from kernelgen.emit.operations.triangles import generate_on_triangles
from kernelgen.emit.simd import factorization_variables
from kernelgen.emit.source import KernelSource, render
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import CUDA, SIMD_TARGETS


def generate_logdet(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of one kernel that computes the logarithms of determinants.

    On a GPU its entry is `void entry(const scalar *a, scalar *logdet, int *info, long long stride, long long batch)`;
    on a CPU it returns an int, and has `first` and `last`, groups of `lanes` matrices, besides. `stride` is the
    distance between neighbouring elements of one matrix, `logdet` and `info` have room for `batch` numbers. Where an
    info is not 0 the logarithm is NaN.
    """
    if spec.target == CUDA.name:
        return generate_on_triangles("thread/triangles/logdet.cu.jinja", spec, schedule)
    variables = factorization_variables(spec, schedule, in_place=spec.layout == "canonical", apart=True)
    text = render("simd/triangles/logdet.c.jinja", **variables)
    return KernelSource(text, spec.name, spec.lanes, SIMD_TARGETS[spec.target].flags)
