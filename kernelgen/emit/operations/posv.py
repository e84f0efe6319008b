"""Sources of kernels that factor and solve at once, the thread family: C for SIMD targets, CUDA for GPUs."""

from __future__ import annotations

from kernelgen.emit.operations.posv_cuda import generate_posv_for_gpu
from kernelgen.emit.operations.posv_simd import generate_posv_for_simd
from kernelgen.emit.source import KernelSource
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import CUDA


def generate_posv(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of one kernel that factors matrices and solves by the factors, which it does not write.

    On a GPU its entry is `void entry(const scalar *a, const scalar *b, scalar *x, int *info, long long nrhs,
    long long stride, long long batch)`; on a CPU it returns an int, and has `first` and `last`, groups of `lanes`
    matrices, besides. `stride` is the distance between neighbouring elements of one matrix; `b` and `x`, which may be
    `b`, are (batch, n, nrhs) in rows; `info` has room for `batch` numbers. Where an info is not 0 the solution has no
    meaning. Kernels of "posvdet" have `scalar *logdet` before `info`, with room for the logarithms of `batch`
    determinants: NaN where an info is not 0.
    """
    for_gpu = spec.target == CUDA.name
    return generate_posv_for_gpu(spec, schedule) if for_gpu else generate_posv_for_simd(spec, schedule)
