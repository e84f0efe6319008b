"""CUDA sources of kernels that factor and solve at once, the thread family."""

from __future__ import annotations

from math import gcd

from kernelgen.emit.source import KernelSource, Launch, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.gpu import PIECE_BYTES, WARP
from kernelgen.schedules import ThreadSchedule
from kernelgen.schedules.stages.rows import RowsStage
from kernelgen.spec import KernelSpec
from kernelgen.targets import ELEMENT_BYTES

# Registers of a thread that are for the last rows of a factor, where the first ones wait in shared memory: the other
# ones are for right-hand sides, a row that comes back, and addresses.
_ROW_REGISTERS = 190
# Tiles of right-hand sides where the factor has none.
_SOLVE_NB = 4
# Columns that are waited for together, at least.
_GROUP = 4


def generate_posv_for_gpu(spec: KernelSpec, schedule: ThreadSchedule, *, repairs: bool = False) -> KernelSource:
    """The source of `generate_posv` for this target, or with repair, as `generate_repairing` says."""
    if schedule.split:
        return _generate_split(spec, schedule)
    entry = f"{spec.name}_repairs" if repairs else spec.name
    problem, threads = spec.problem, schedule.threads or WARP
    stage = schedule.solve_stage(problem, spec.layout)
    piece = PIECE_BYTES // ELEMENT_BYTES[problem.dtype] if stage.interleaved else stage.width
    nb = schedule.nb if schedule.unroll == "tiles" else min(_SOLVE_NB, problem.n)
    group = -(-_GROUP // schedule.nb) * schedule.nb
    text = render(
        "thread/posv/posv.cu.jinja",
        **variables_of(spec),
        entry=entry,
        repairs=repairs,
        stage=stage,
        warp=WARP,
        piece=piece,
        piece_bytes=piece * ELEMENT_BYTES[problem.dtype],
        element_bytes=ELEMENT_BYTES[problem.dtype],
        step=gcd(stage.width, nb),
        blocks=schedule.blocks or 1,
        nb=nb,
        group=group,
        groups=-(-problem.n // group),
        returned=returned_rows(problem.n, problem.dtype) if schedule.staged else 0,
    )
    launch = Launch(threads, threads, stage.shared_bytes, schedule.cache or "l1", pdl=bool(schedule.pdl))
    return cuda_source(text, entry, problem.dtype, problem.math, launch)


def _generate_split(spec: KernelSpec, schedule: ThreadSchedule) -> KernelSource:
    """The source where several threads have a matrix."""
    threads, problem, split = schedule.threads or WARP, spec.problem, schedule.split or 1
    stage = RowsStage(problem, split, threads, spec.layout == "canonical")
    text = render(
        "thread/posv/split.cu.jinja",
        **variables_of(spec),
        entry=spec.name,
        piece=stage.piece,
        element_bytes=ELEMENT_BYTES[problem.dtype],
        stage=stage,
    )
    launch = Launch(
        threads,
        threads // split,
        stage.shared_bytes,
        schedule.cache or "l1",
        schedule.blocks,
        bool(schedule.pdl),
    )
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)


def returned_rows(n: int, dtype: str) -> int:
    """How many of the first rows of a factor registers have no room for."""
    room = _ROW_REGISTERS * 4 // ELEMENT_BYTES[dtype]
    return next(rows for rows in range(n + 1) if (n * (n + 1) - rows * (rows + 1)) // 2 <= room)
