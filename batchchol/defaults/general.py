"""The kernel of general matrices where none was measured: a rule."""

from __future__ import annotations

from dataclasses import replace

from kernelgen import MAX_CHUNK, TARGETS, KernelSpec, ThreadSchedule
from kernelgen.schedules.general_stage import least_split

# Of CPUs, the largest order of straight-line code.
STRAIGHT_LINE = 16


def general(plain: KernelSpec, chunk: int | None) -> KernelSpec:
    """The kernel of `plain`'s problem; of a GPU, for this chunk alone, whose offsets are constants then."""
    gpu = TARGETS[plain.target].gpu
    schedule = ThreadSchedule(
        1,
        str(plain.problem.operation.fixed["looking"]),
        "full" if gpu or plain.problem.n <= STRAIGHT_LINE else "tiles",
        split=least_split(plain.problem) if gpu else None,
        stride=chunk if gpu and plain.layout == "chunked" and chunk in range(2, MAX_CHUNK + 1) else None,
    )
    return replace(plain, schedule=schedule)
