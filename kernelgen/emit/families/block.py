"""CUDA sources of the block family: a thread to each tile of a few matrices, the panel in shared memory."""

from __future__ import annotations

from kernelgen.emit.source import KernelSource, Launch, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.gpu import LINE_BYTES, PIECE_BYTES, WARP
from kernelgen.schedules import BlockSchedule
from kernelgen.schedules.block import BARRIERS, COLUMNS
from kernelgen.spec import KernelSpec
from kernelgen.targets import ELEMENT_BYTES


def generate_block(spec: KernelSpec, schedule: BlockSchedule) -> KernelSource:
    """The CUDA source of one kernel that factors, called as those of the thread family are, or solves as well.

    The latter's entry is that of `generate_posv`.
    """
    problem, shape = spec.problem, schedule.shape(spec.problem)
    text = render(
        "block/block.cu.jinja",
        **variables_of(spec),
        shape=shape,
        # Whole pieces lie side by side only where matrices and tiles begin and end with one.
        wide=spec.layout == "canonical" and problem.n % shape.width == 0 and schedule.nb % shape.width == 0,
        # Elements of neighbouring lanes, where a piece of them lies in one chunk.
        together=schedule.stride is not None and schedule.stride % shape.width == 0 == shape.lanes % shape.width,
        barrier="__syncwarp" if shape.threads == WARP else "__syncthreads",
        restrict="" if spec.in_place else "__restrict__ ",
        piece_bytes=PIECE_BYTES,
        line_scalars=LINE_BYTES // ELEMENT_BYTES[problem.dtype],
        # Arrays, of which a lane reads sectors of its own, do not gain by it.
        asks=problem.operation.forgets and spec.layout != "canonical",
        barriers=BARRIERS,
        columns=COLUMNS,
        solves=problem.operation.forgets,
        entry="block/block_pipeline.cu.jinja" if schedule.pipeline else "block/block_barriers.cu.jinja",
    )
    resident = schedule.blocks if schedule.pipeline else None
    cache, pdl = schedule.cache or "shared", bool(schedule.pdl)
    launch = Launch(shape.threads, shape.lanes, shape.shared_bytes, cache, resident, pdl)
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)
