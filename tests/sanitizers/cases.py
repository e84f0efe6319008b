"""What runs under compute-sanitizer: kernels of every family, each choice in turns, odd orders and ragged batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from kernelgen import (
    BlockSchedule,
    KernelSpec,
    Layout,
    Problem,
    Schedule,
    SharedSchedule,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    WholeSchedule,
)
from kernelgen.schedules.strip import TILE

ORDERS = (1, 2, 3, 5, 7, 13, 17, 23, 31, 33, 47, 65, 100, 127)
LAYOUTS = (
    Layout.chunked(32),
    Layout.canonical(),
    Layout.chunked(3, "row"),
    Layout.interleaved(),
    Layout.chunked(48),
    Layout.canonical("col"),
    Layout.interleaved("row"),
    Layout.chunked(512),
    Layout.chunked(2),
)
BATCHES = (1, 31, 33, 100, 257)
# Of the families whose threads wait for each other, which the tools slow down most.
SMALL_BATCHES = (1, 31, 33, 7, 70)
TOGETHER = (BlockSchedule, WarpSchedule, StripSchedule, WholeSchedule)
# Blocks of the tensor cores in shared memory are of single precision.
SINGLE = (WarpSchedule, StripSchedule)
ROUNDS = 3


@dataclass(frozen=True)
class Case:
    """A batch and the kernel that factors it."""

    spec: KernelSpec
    layout: Layout
    batch: int


def cases() -> Iterator[Case]:
    """Every order several times; the other choices take turns of lengths that have little in common."""
    for schedule_of, rounds in SCHEDULES.items():
        for turn in range(rounds * len(ORDERS)):
            n, layout = ORDERS[turn % len(ORDERS)], LAYOUTS[turn % len(LAYOUTS)]
            in_place, schedule = turn % 4 == 3, schedule_of(turn, n)
            math_turns = 1 if isinstance(schedule, WarpSchedule) else 3
            if isinstance(schedule, ThreadSchedule) and schedule.unroll == "full" and layout.kind == "canonical":
                schedule = replace(schedule, staged=True, threads=(32, 96)[turn // 2 % 2])
            if isinstance(schedule, StripSchedule):
                layout = Layout.chunked(schedule.stride or 32, ("col", "row")[turn // 2 % 2])
            if isinstance(schedule, WarpSchedule) and schedule.stride:
                layout = Layout.chunked(schedule.stride)
            if isinstance(schedule, WarpSchedule) and layout.kind == "canonical":
                schedule = replace(schedule, staged=bool(turn // 2 % 2))
            if isinstance(schedule, WholeSchedule):
                layout = Layout.canonical(("row", "col")[turn // 2 % 2])
            dtype = "float32" if turn % 3 < 2 or isinstance(schedule, SINGLE) else "float64"
            math = "fast" if isinstance(schedule, StripSchedule) else ("ieee", "fast")[turn // math_turns % 2]
            problem = Problem(n, dtype, ("lower", "upper")[turn // 5 % 2], math=math)
            schedule = replace(schedule, pdl=bool(turn // 4 % 2))
            spec = KernelSpec(problem, layout.kind, layout.order, schedule, "cuda", in_place)
            batches = SMALL_BATCHES if isinstance(schedule, TOGETHER) else BATCHES
            yield Case(spec, layout, batches[turn % len(batches)])


def thread_schedule(turn: int, n: int) -> ThreadSchedule:
    """The choices of the thread family whose turn it is."""
    return ThreadSchedule(
        min((4, 1, 8, 3, 5)[turn % 5], n),
        ("top", "left", "right")[turn // 2 % 3],
        "full" if n <= 17 and turn % 2 else "tiles",
        threads=(32, 96, 33, 256)[turn % 4],
        blocks=(None, 1)[turn // 5 % 2],
        cache=("l1", "shared")[turn % 2],
    )


def shared_schedule(turn: int, n: int) -> SharedSchedule:
    """The choices of the shared family whose turn it is."""
    return SharedSchedule(
        min((4, 16, 3, 32, 5)[turn % 5], n),
        ("top", "left", "right")[turn // 2 % 3],
        (None, 1)[turn % 2],
        cache=("l1", "shared")[turn % 2],
    )


def block_schedule(turn: int, n: int) -> BlockSchedule:
    """The choices of the block family whose turn it is; large matrices leave room for few and large tiles."""
    small = n <= 33
    pipeline = (None, 1, 2)[turn // 2 % 3] if n <= 65 else (None, 1)[turn % 2]
    return BlockSchedule(
        min((4, 8, 5, 6, 7)[turn % 5], max(n, 4)) if small else (8, 16, 9)[turn % 3],
        (8, 1, 12, 2)[turn % 4] if small else (1, 3, 2)[turn % 3],
        blocks=(None, 2)[turn // 2 % 2],
        cache=("l1", "shared")[turn % 2],
        pipeline=pipeline,
        early=1 if pipeline and turn % 2 else None,
        spare=1 if pipeline and n > 60 and turn % 3 else None,
        fold=1 if pipeline and n > 60 and turn % 3 == 0 else None,
    )


def warp_schedule(turn: int, n: int) -> WarpSchedule:
    """The choices of the warp family whose turn it is; large matrices leave room for one, or half of one."""
    warps = 2 if n > 96 else (1, 2, 1)[turn % 3]
    matrices = (4, 2, 1)[turn // 3 % 3] if warps == 1 and n <= 33 else 1
    return WarpSchedule(
        matrices,
        warps,
        (2, 4, 1)[turn // 2 % 3] if warps == 1 else 1,
        update=(None, "fma")[turn // 2 % 2],
        unroll=("tiles", "full")[turn // 3 % 2],
        blocks=(None, 2)[turn // 2 % 2],
        # Columns of such matrices are read by the lines that they are in.
        stride=2 if n == 65 and warps == 1 else None,
        cache=("l1", "shared")[turn % 2],
    )


def strip_schedule(turn: int, n: int) -> StripSchedule:
    """The choices of the strip family whose turn it is: from a warp to a strip to more than there are tiles."""
    side = -(-n // TILE)
    return StripSchedule(
        (side, side + 3, 32)[turn % 3],
        min((0, 1, 2)[turn // 2 % 3], side - 1),
        blocks=(None, 2)[turn // 2 % 2],
        stride=(4, 32, 12)[turn % 3],
        cache=("l1", "shared")[turn % 2],
    )


def whole_schedule(turn: int, n: int) -> WholeSchedule:
    """The choices of the whole family whose turn it is: from one warp to one for each panel."""
    return WholeSchedule((1, 3, min(-(-n // 8), 16))[turn % 3], blocks=(None, 2)[turn // 2 % 2])


# How often each family meets every order.
SCHEDULES: Mapping[Callable[[int, int], Schedule], int] = {
    thread_schedule: ROUNDS,
    shared_schedule: 1,
    block_schedule: 2,
    warp_schedule: 3,
    strip_schedule: 3,
    whole_schedule: 2,
}
