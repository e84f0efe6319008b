"""CUDA sources of kernels that factor and solve at once, the thread family."""

from __future__ import annotations

from kernelgen.emit.source import KernelSource, Launch, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.gpu import WARP
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec


def generate_posv_for_gpu(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of `generate_posv` for this target."""
    problem, threads = spec.problem, schedule.threads or WARP
    stage = schedule.solve_stage(problem, spec.layout)
    text = render("thread/posv.cu.jinja", **variables_of(spec), stage=stage, warp=WARP, blocks=schedule.blocks or 1)
    launch = Launch(threads, threads, stage.shared_bytes, schedule.cache or "l1", pdl=bool(schedule.pdl))
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)
