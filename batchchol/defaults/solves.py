"""The kernel of a GPU that solves by given factors where none was measured: a rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from kernelgen import KernelSpec, SpecError, ThreadSchedule
from kernelgen.gpu import WARP

# Of the GPUs that the rule is for, whose multiprocessors have 228 KiB of shared memory.
FITTED = "sm_90"
# Shared memory of a warp: a multiprocessor then holds three or more, and while one solves others wait for memory.
WARP_BYTES = 75 << 10
# Right-hand sides at a time, if their rows leave a thread that many registers; rows that a step finds at a time.
RHS, COLUMN_REGISTERS, NB = 4, 96, 4


def staged_solve(plain: KernelSpec) -> KernelSpec:
    """The solve of `plain`'s problem by triangles in shared memory: as few threads to a matrix as leave room."""
    splits, several = [1 << power for power in range(WARP.bit_length())], [RHS, RHS // 2, 1]
    for split, rhs in product(splits, several):
        try:
            nb = min(NB, split)
            spec = replace(plain, schedule=ThreadSchedule(nb, unroll="full", staged=True, rhs=rhs, split=split))
        except SpecError:
            continue
        schedule = spec.schedule
        assert isinstance(schedule, ThreadSchedule)
        stage = schedule.triangle_stage(spec.problem, spec.layout, by_rows=False)
        if schedule.solve_bytes(stage) <= WARP_BYTES and schedule.column_registers(spec.problem) <= COLUMN_REGISTERS:
            return spec
    raise AssertionError(f"a warp has no room for one {plain.problem}")
