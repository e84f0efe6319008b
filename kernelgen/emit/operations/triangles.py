"""The common part of CUDA sources, the thread family, whose warps have their triangles in shared memory."""

from __future__ import annotations

from math import gcd

from kernelgen.emit.source import KernelSource, Launch, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.gpu import PIECE_BYTES, WARP
from kernelgen.schedules import ThreadSchedule
from kernelgen.spec import KernelSpec
from kernelgen.targets import ELEMENT_BYTES

# Columns that are waited for together.
_GROUP = 4


def generate_on_triangles(template: str, spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source of a kernel of a GPU whose threads work on a triangle each."""
    problem, threads = spec.problem, schedule.threads or WARP
    stage = schedule.solve_stage(problem, spec.layout)
    room = (
        max(stage.scalars, WARP * (problem.n * (problem.n + 1) // 2 | 1))
        if problem.operation.inverts and not problem.operation.packs
        else stage.scalars
    )
    piece = PIECE_BYTES // ELEMENT_BYTES[problem.dtype] if stage.interleaved else stage.width
    text = render(
        template,
        **variables_of(spec),
        stage=stage,
        room=room,
        warp=WARP,
        piece=piece,
        piece_bytes=piece * ELEMENT_BYTES[problem.dtype],
        element_bytes=ELEMENT_BYTES[problem.dtype],
        step=gcd(stage.width, schedule.nb) if schedule.unroll == "tiles" else stage.width,
        blocks=schedule.blocks or 1,
        group=_GROUP,
        groups=-(-problem.n // _GROUP),
    )
    shared = threads // WARP * room * ELEMENT_BYTES[problem.dtype]
    launch = Launch(threads, threads, shared, schedule.cache or "shared", pdl=bool(schedule.pdl))
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)
