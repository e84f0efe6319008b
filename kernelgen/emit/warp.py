"""CUDA sources of the warp family: a warp or two to a few whole matrices, their triangles in its registers."""

from __future__ import annotations

from kernelgen.emit.source import KernelSource, Launch, element_strides, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.schedules import WarpSchedule
from kernelgen.spec import KernelSpec


def generate_warp(spec: KernelSpec, schedule: WarpSchedule) -> KernelSource:
    """The CUDA source of one factorization kernel, called as those of the thread family are."""
    problem, shape = spec.problem, schedule.shape(spec.problem)
    text = render(
        "warp/warp.cu.jinja",
        **variables_of(spec),
        shape=shape,
        barrier="__syncwarp" if schedule.warps == 1 else "__syncthreads",
    )
    staged = spec.layout == "canonical" and element_strides(spec, problem.n)[1] == 1
    stage = 4 * shape.teams * schedule.matrices * shape.stage if staged else 0
    matrices, cache = shape.teams * schedule.matrices, schedule.cache or "shared"
    launch = Launch(shape.threads, matrices, stage, cache, pdl=bool(schedule.pdl))
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)
