"""CUDA sources of the whole family: a block of warps to one matrix, which is in shared memory, left looking."""

from __future__ import annotations

from kernelgen.emit.source import KernelSource, Launch, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.schedules import WholeSchedule
from kernelgen.schedules.stages.heads import rounds_heads
from kernelgen.spec import KernelSpec


def generate_whole(spec: KernelSpec, schedule: WholeSchedule) -> KernelSource:
    """The CUDA source of one kernel that factors, called as those of the thread family are, or solves as well.

    The latter's entry is that of `generate_posv`, by given factors that of `generate_solve`.
    """
    problem, shape = spec.problem, schedule.shape(spec.problem)
    rounds = rounds_heads(problem, solves=problem.operation.has_columns)
    text = render("whole/whole.cu.jinja", **variables_of(spec), shape=shape, rounds=rounds)
    launch = Launch(shape.threads, 1, shape.shared_bytes, schedule.cache or "shared", pdl=bool(schedule.pdl))
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)
