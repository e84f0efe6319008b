"""CUDA sources of the warp family: a warp or two to a few whole matrices, their triangles in its registers."""

from __future__ import annotations

from kernelgen.cuda import FAST_FLAGS, stride_expression, undefine_macros
from kernelgen.rendering import SCALARS, KernelSource, Launch, element_strides, render
from kernelgen.spec import KernelSpec
from kernelgen.tensor_schedules import WarpSchedule


def generate_warp(spec: KernelSpec, schedule: WarpSchedule) -> KernelSource:
    """The CUDA source of one factorization kernel, called as those of the thread family are."""
    problem, shape = spec.problem, schedule.shape(spec.problem)
    strides = element_strides(spec, problem.n)
    text = render(
        "warp.cu.jinja",
        spec=spec,
        schedule=schedule,
        shape=shape,
        n=problem.n,
        dtype=problem.dtype,
        scalar=SCALARS[problem.dtype],
        strides=strides,
        stride=stride_expression(spec),
        barrier="__syncwarp" if schedule.warps == 1 else "__syncthreads",
    )
    flags = FAST_FLAGS[problem.dtype] if schedule.math == "fast" else ()
    staged = spec.layout == "canonical" and strides[1] == 1
    stage = 4 * shape.teams * schedule.matrices * shape.stage if staged else 0
    matrices, cache = shape.teams * schedule.matrices, schedule.cache or "shared"
    launch = Launch(shape.threads, matrices, stage, cache, pdl=bool(schedule.pdl))
    return KernelSource(undefine_macros(text), spec.name, spec.lanes, flags, launch)
