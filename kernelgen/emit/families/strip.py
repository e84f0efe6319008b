"""CUDA sources of the strip family: four matrices to a block, a warp has a tile, updates by tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from kernelgen.emit.source import KernelSource, Launch, render
from kernelgen.emit.thread import cuda_source, variables_of
from kernelgen.gpu import LINE_BYTES, PIECE_BYTES, WARP
from kernelgen.schedules import StripSchedule
from kernelgen.schedules.stages.heads import rounds_heads
from kernelgen.schedules.strip import COLUMNS, GROUP, TILE_PIECES
from kernelgen.spec import KernelSpec
from kernelgen.targets import ELEMENT_BYTES

# With more warps the code that factors a square is there once.
_WARPS_OF_TWO_COPIES = 24


def generate_strip(spec: KernelSpec, schedule: StripSchedule) -> KernelSource:
    """The CUDA source of one kernel that factors, called as those of the thread family are, or solves as well.

    The latter's entry is that of `generate_posv`.
    """
    problem, shape = spec.problem, schedule.shape(spec.problem)
    solves = problem.operation.forgets
    # An element of a group is half of a sector, and the next one along a column is the other half.
    by_sectors = not solves and schedule.stride == GROUP and (spec.order == "col") == (problem.uplo == "lower")
    whole_sectors = by_sectors and problem.n % 2 == 1
    text = render(
        "strip/strip.cu.jinja",
        **variables_of(spec),
        shape=shape,
        whole_sectors=whole_sectors,
        # What two copies of the code that factors a square would take: with this many warps more registers than there
        # are, and beside the code that moves rows more than the instruction cache holds (docs/results-limits.md).
        rolled=whole_sectors or shape.threads // WARP > _WARPS_OF_TWO_COPIES,
        completes=by_sectors and not spec.in_place,
        restrict="" if spec.in_place else "__restrict__ ",
        piece_bytes=PIECE_BYTES,
        tile_pieces=TILE_PIECES,
        turns=shape.turns,
        group=GROUP,
        first_warps=_bytes(shape.first_warps[:-1]),
        strip_warps=_bytes(shape.strip_warps),
        line_scalars=LINE_BYTES // ELEMENT_BYTES[problem.dtype],
        tensor=True,
        rounds=rounds_heads(problem),
        solves=solves,
        columns=COLUMNS,
        staged=False,
    )
    cache, pdl = schedule.cache or "shared", bool(schedule.pdl)
    launch = Launch(shape.threads, GROUP, shape.shared_bytes, cache, schedule.blocks, pdl)
    return cuda_source(text, spec.name, problem.dtype, problem.math, launch)


def _bytes(numbers: Sequence[int]) -> str:
    """Up to eight small numbers as the bytes of one, the first one last."""
    return f"{sum(number << 8 * place for place, number in enumerate(numbers)):#x}ull"
