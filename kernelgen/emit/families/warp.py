"""CUDA sources of the warp family: a warp or two to a few whole matrices, their triangles in its registers."""

from __future__ import annotations

from kernelgen.emit.source import KernelSource, Launch, element_strides, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.schedules import WarpSchedule
from kernelgen.schedules.stages.heads import rounds_heads
from kernelgen.schedules.stages.warp import CoveredRows
from kernelgen.spec import KernelSpec

# From this order on rows of the factor go back to the stage in each case: n = 96 takes 12% less so, 80 3%
# (datasets/sweeps/array_variants_h200.csv).
BY_LINES_FROM = 80


def generate_warp(spec: KernelSpec, schedule: WarpSchedule) -> KernelSource:
    """The CUDA source of one kernel that factors, called as those of the thread family are, or solves as well.

    The latter's entry is that of `generate_posv`.
    """
    problem, shape = spec.problem, schedule.shape(spec.problem)
    solves = problem.operation.forgets
    by_rows = spec.layout == "canonical" and element_strides(spec, problem.n)[1] == 1
    whole = bool(schedule.staged)
    staged = by_rows and problem.dtype == "float32" and not whole
    potrf = problem.op == "potrf" and not schedule.resident
    returns = bool(staged and potrf and problem.n > 8 and (problem.n % 8 or problem.n >= BY_LINES_FROM))
    covers = returns and schedule.matrices == 1 and problem.n % 4 and problem.n > 16
    covered = CoveredRows(problem.n) if covers else None
    stage = max(shape.stage, covered.scalars) if covered else shape.stage
    image = schedule.image(problem)
    room = shape.room(staged=staged)
    text = render(
        "warp/warp.cu.jinja",
        **variables_of(spec),
        shape=shape,
        image=image,
        returns=returns,
        covered=covered,
        room=room,
        column=shape.column(staged=staged),
        # Scalars from the stage of one matrix to the next.
        stage=room if solves else stage,
        barrier="__syncwarp" if schedule.warps == 1 else "__syncthreads",
        rounds=rounds_heads(problem, solves=(schedule.rhs or 1) > 1),
    )
    matrices, cache = shape.teams * schedule.matrices, schedule.cache or "shared"
    scalars = room if solves else stage if staged else 0
    shared = matrices * scalars * 4 + shape.teams * schedule.image_bytes(problem)
    resident = schedule.blocks if schedule.resident else None
    launch = Launch(shape.threads, matrices, shared, cache, resident, bool(schedule.pdl))
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)
