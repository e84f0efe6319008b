"""The kernel of general matrices where none was measured: a rule."""

from __future__ import annotations

from dataclasses import replace

from kernelgen import MAX_CHUNK, TARGETS, KernelSpec, ThreadSchedule
from kernelgen.gpu import WARP
from kernelgen.schedules.general_stage import least_split
from kernelgen.schedules.thread import FULL_UNROLL_BUDGET, general_operations

# Of CPUs, the largest order of straight-line code.
STRAIGHT_LINE = 16
# Of a GPU's block, where matrices are split over threads: warps read neighbours in memory at about the same time.
SPLIT_THREADS = 128


def general(plain: KernelSpec, chunk: int | None) -> KernelSpec:
    """The kernel of `plain`'s problem; of a GPU, for this chunk alone, whose offsets are constants then."""
    gpu, problem = TARGETS[plain.target].gpu, plain.problem
    straight = problem.n <= STRAIGHT_LINE and general_operations(problem) <= FULL_UNROLL_BUDGET
    split = least_split(problem) if gpu else None
    schedule = ThreadSchedule(
        1,
        str(problem.operation.fixed["looking"]),
        "full" if gpu or straight else "tiles",
        split=split,
        threads=SPLIT_THREADS if split and split <= WARP else None,
        stride=chunk if gpu and plain.layout == "chunked" and chunk in range(2, MAX_CHUNK + 1) else None,
    )
    return replace(plain, schedule=schedule)
