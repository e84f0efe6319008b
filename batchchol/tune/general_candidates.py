"""Which kernels of general matrices may be the fastest: the candidates, and what is varied of the best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

from batchchol.defaults.registers import share_of_registers
from kernelgen import TARGETS, KernelSpec, Problem, SpecError, ThreadSchedule
from kernelgen.gpu import WARP
from kernelgen.operations import OPERATIONS
from kernelgen.schedules import DEFAULT_THREADS

OPS = ("potrf", *(name for name, operation in OPERATIONS.items() if operation.general))
"""The operations that are tuned."""

# Threads that share a matrix, of one and of several warps, and threads of a block whose matrices a warp's share.
_SPLITS, _THREADS = (None, 4, 8, 16, WARP, 2 * WARP, 4 * WARP, 8 * WARP), (32, 64, 128, 256)
# Blocks of a multiprocessor, of which each thread has registers for its elements and for this many other numbers.
_RESIDENT, _BESIDE = (None, 2, 3, 4, 6, 8, 10, 12, 16, 20), 24


def general_specs(problem: Problem, layout: str, target: str) -> Iterator[KernelSpec]:
    """The candidates for a problem in a layout, canonical in rows, those on chunks for the default one alone."""
    order = "row" if layout == "canonical" else "col"
    splits = (*_SPLITS, 2) if problem.operation.rectangular else _SPLITS
    for schedule in _of_gpus(layout, splits) if TARGETS[target].gpu else _of_cpus():
        with suppress(SpecError):
            yield KernelSpec(problem, layout, order, schedule, target)


def _of_cpus() -> Iterator[ThreadSchedule]:
    yield from (ThreadSchedule(1, "right", unroll) for unroll in ("tiles", "full"))


def _of_gpus(layout: str, splits: tuple[int | None, ...]) -> Iterator[ThreadSchedule]:
    stride = DEFAULT_THREADS if layout == "chunked" else None
    for split, staged in product(splits, (None, True)):
        for threads in _THREADS if split is None or split <= WARP else (None,):
            yield ThreadSchedule(1, "right", "full", staged=staged, split=split, threads=threads, stride=stride)


def general_variations(spec: KernelSpec) -> list[ThreadSchedule]:
    """Its schedule for fewer and more blocks to a multiprocessor, that is more and fewer registers to a thread."""
    schedule, problem = spec.schedule, spec.problem
    assert isinstance(schedule, ThreadSchedule), "general matrices have no other family"
    if not TARGETS[spec.target].gpu:
        return [schedule]
    stage = schedule.general_stage(problem, spec.layout, spec.order)
    elements = getattr(stage, "registers", problem.rows * problem.n)
    warps = (schedule.threads or DEFAULT_THREADS) // WARP
    fitting = [each for each in _RESIDENT if each is None or share_of_registers(each * warps) >= elements + _BESIDE]
    return [replace(schedule, blocks=blocks) for blocks in fitting]
