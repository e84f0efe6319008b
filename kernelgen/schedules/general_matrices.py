"""What schedules of the thread family may not ask for general matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelgen.gpu import MAX_SHARED_BYTES, WARP
from kernelgen.problem import Problem
from kernelgen.refusals import require
from kernelgen.schedules.budget import FULL_UNROLL_BUDGET, general_operations
from kernelgen.schedules.stages.general import (
    MAX_GENERAL_REGISTERS,
    MAX_ROW_REGISTERS,
    PANEL,
    BlockStage,
    GeneralStage,
    SharedStage,
    SplitStage,
    WarpsStage,
    most_general_order,
    registers_of_one,
)
from kernelgen.schedules.stages.lanes import LaneStage
from kernelgen.schedules.stages.panels import PanelStage
from kernelgen.schedules.stages.reflectors import MAX_COLUMN_REGISTERS, SPLITS, ReflectorStage

if TYPE_CHECKING:
    from kernelgen.schedules.thread import ThreadSchedule


def check_general(schedule: ThreadSchedule, problem: Problem, layout: str) -> None:
    """Refuse what kernels of general matrices cannot do: those of GPUs have them in registers."""
    n, threads, split = problem.n, schedule.threads, schedule.split
    operations = _operations(schedule, problem)
    code = f"n={n} is {operations:,} operations of straight-line code"
    works = f"{code}, over the budget of {FULL_UNROLL_BUDGET:,}; use unroll='tiles'"
    require(schedule.unroll != "full" or operations <= FULL_UNROLL_BUDGET, "unroll", schedule.unroll, works)
    works = "on a CPU general matrices are factored in a chunk apart in any case, use staged=True"
    require(threads is not None or schedule.staged is True, "staged", schedule.staged, works)
    if threads is None:
        return
    works = "only LU by a thread or whole warps to a matrix, and QR by few lanes or whole warps, have it, use None"
    require(not schedule.staged or _may_stage(schedule, problem), "staged", schedule.staged, works)
    require(threads % WARP == 0, "threads", threads, f"warps work together, use a multiple of {WARP}")
    works = "general matrices stay in registers, use 'full'"
    require(schedule.unroll == "full", "unroll", schedule.unroll, works)
    works = f"use a power of two, or a multiple of {WARP}"
    require(split is None or split & (split - 1) == 0 or split % WARP == 0, "split", split, works)
    stage = schedule.general_stage(problem, layout)
    if isinstance(stage, ReflectorStage):
        _check_shares(stage, threads)
    elif isinstance(stage, PanelStage):
        works = f"a block has whole matrices, use a multiple of split={split}"
        require(threads % stage.split == 0, "threads", threads, works)
    elif not isinstance(stage, LaneStage):
        _check_registers(problem, stage, threads, split)
    shared = stage.shared_bytes(threads)
    works = f"n={n} is {shared:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a block; use fewer"
    require(shared <= MAX_SHARED_BYTES, "threads", threads, works)


def _operations(schedule: ThreadSchedule, problem: Problem) -> int:
    """Operations of a kernel's straight-line code; 0 where the work is in loops."""
    n, split = problem.n, schedule.split
    # Several threads each update all of their rows in every step: some of them have been pivots already.
    if split and (problem.operation.rectangular or schedule.staged):
        # Reflectors come in loops where there are many, and so do panels in shared memory.
        return 0
    if split and split > WARP:
        # Warps update in loops.
        return -(-n // WARP) * (-(-n * WARP // split) + PANEL) * PANEL
    return -(-n // split) * n * (n + 1) // 2 if split else general_operations(problem)


def _may_stage(schedule: ThreadSchedule, problem: Problem) -> bool:
    """Whether a GPU's threads may have a general matrix, or columns of it, in shared memory, though not all would."""
    if problem.operation.rectangular:
        return any(stage(problem, schedule.split or 1).fits for stage in (LaneStage, PanelStage))
    return (schedule.split or 0) % WARP == 0 and (problem.operation.factors or schedule.split is not None)


def _check_registers(
    problem: Problem,
    stage: GeneralStage | SharedStage | SplitStage | WarpsStage | BlockStage,
    threads: int,
    split: int | None,
) -> None:
    """Refuse general matrices that threads have too few registers for."""
    if isinstance(stage, WarpsStage):
        works = f"a block has one matrix, whose {stage.warps} warps of columns take {stage.threads}; use those"
        require(threads == stage.threads, "threads", threads, works)
    if isinstance(stage, BlockStage):
        works = f"a block has whole matrices, use a multiple of split={split}"
        require(threads % stage.split == 0, "threads", threads, works)
    if isinstance(stage, SharedStage):
        who, registers, limit = "a thread", stage.registers, MAX_GENERAL_REGISTERS
    elif isinstance(stage, SplitStage | WarpsStage | BlockStage):
        who, registers, limit = f"each of its {split} threads", stage.registers, MAX_ROW_REGISTERS
    else:
        who, registers, limit = "a thread", registers_of_one(problem), MAX_GENERAL_REGISTERS
    most = most_general_order(problem.dtype, split)
    works = f"a matrix takes {registers} registers of {who}, over {limit}; use up to {most}, or a larger split"
    require(registers <= limit, "n", problem.n, works)


def _check_shares(stage: ReflectorStage, threads: int) -> None:
    """Refuse to have a matrix's columns in threads that are too few, or not those of a block."""
    split = stage.split
    works = f"threads share the columns of a matrix, use one of {', '.join(map(str, SPLITS))}"
    require(split in SPLITS, "split", split, works)
    works = f"a matrix takes {stage.registers} registers of each thread, over {MAX_COLUMN_REGISTERS}; use more"
    require(stage.registers <= MAX_COLUMN_REGISTERS, "split", split, works)
    works = f"a block has all threads of a matrix, use {split}"
    require(split <= WARP or threads == split, "threads", threads, works)
