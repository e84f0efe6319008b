"""Specs of every family, target and operation, drawn by Hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from kernelgen import (
    FAMILIES,
    MAX_CHUNK,
    MAX_N,
    MAX_NB,
    MAX_ON_CHIP,
    TARGETS,
    BlockSchedule,
    KernelSpec,
    Problem,
    Schedule,
    SharedSchedule,
    SpecError,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    WholeSchedule,
)
from kernelgen.gpu import MAX_BLOCK_THREADS
from kernelgen.gpu import WARP as WARP_THREADS
from kernelgen.operations import OPERATIONS
from kernelgen.problem import LAYOUT_KINDS, MATHS, ORDERS
from kernelgen.schedules import LOOKINGS, UPDATES
from kernelgen.schedules.axes import CACHES, UNROLLS
from kernelgen.schedules.block import MAX_LANES, MIN_BLOCK_NB
from kernelgen.schedules.budget import FULL_UNROLL_BUDGET, straight_line_operations
from kernelgen.schedules.shared import MAX_SHARED_NB
from kernelgen.schedules.stages.general import SPLITS
from kernelgen.schedules.strip import GROUP, TILE
from kernelgen.schedules.thread import DEFAULT_RHS, MAX_RHS, MAX_THREADS
from kernelgen.schedules.whole import MAX_WARPS


@st.composite
def specs(draw: st.DrawFn) -> KernelSpec:
    """Any spec that can be built."""
    layout = draw(st.sampled_from(LAYOUT_KINDS))
    target = draw(st.sampled_from(list(TARGETS)))
    op = draw(st.sampled_from(list(OPERATIONS)))
    families = [name for name, family in FAMILIES.items() if op in family.operations]
    family = draw(st.sampled_from(families)) if TARGETS[target].gpu else "thread"
    larger = op == "potrf" and layout == "canonical" and FAMILIES[family].larger
    n = draw(st.integers(1, min(MAX_ON_CHIP.values()) if larger else MAX_N))
    dtypes = ["float32"] if family == "strip" else ["float32", "float64"]
    drawn = [draw(st.sampled_from(words)) for words in (dtypes, ["lower", "upper"], MATHS)]
    rows = draw(st.none() | st.integers(1, MAX_N)) if OPERATIONS[op].rectangular else None
    try:
        return KernelSpec(
            Problem(n, drawn[0], drawn[1], op, drawn[2], rows),
            layout,
            draw(st.sampled_from(ORDERS)),
            draw(SCHEDULES[op if op in SCHEDULES else family](n, layout, target)),
            target,
            op == "potrf" and draw(st.booleans()),
        )
    except SpecError:
        reject()


def thread_schedules(n: int, layout: str, target: str) -> st.SearchStrategy[Schedule]:
    choices: dict[str, st.SearchStrategy[Any]] = {
        "threads": st.none() | st.integers(1, MAX_THREADS),
        "staged": st.none() | st.booleans() if layout == "canonical" else st.none() | st.just(False),
        **memory_choices(layout),
    }
    if not TARGETS[target].gpu:
        # Canonical arrays are always staged.
        choices = {"prefetch": st.booleans(), "staged": st.booleans() if layout != "canonical" else st.just(True)}
        if layout == "canonical":
            choices["overlap"] = st.sampled_from([None, True])
            choices["half"] = st.sampled_from([None, True] if target == "avx512" else [None])
    tiles = st.integers(1, min(n, MAX_NB))
    unrolls = st.sampled_from(UNROLLS if straight_line_operations(n) <= FULL_UNROLL_BUDGET else UNROLLS[:1])
    return st.builds(ThreadSchedule, tiles, st.sampled_from(LOOKINGS), unrolls, **choices)


def solve_schedules(n: int, layout: str, target: str) -> st.SearchStrategy[Schedule]:
    choices: dict[str, st.SearchStrategy[Any]] = {"staged": st.none() | st.just(True)}
    if layout != "canonical":
        choices = {"staged": st.none() | st.booleans()}
    if TARGETS[target].gpu:
        threads, caches = st.none() | st.integers(1, MAX_THREADS), st.none() | st.sampled_from(CACHES)
        choices = {"staged": st.none(), "threads": threads, "cache": caches}
    return st.tuples(st.integers(1, min(n, MAX_NB)), st.none() | st.integers(1, MAX_RHS)).flatmap(
        lambda chosen: st.builds(
            ThreadSchedule,
            st.just(chosen[0]),
            unroll=st.sampled_from(
                UNROLLS if (chosen[1] or DEFAULT_RHS) * n**2 <= FULL_UNROLL_BUDGET else UNROLLS[:1]
            ),
            rhs=st.just(chosen[1]),
            **choices,
        )
    )


def column_schedules(n: int, layout: str, target: str) -> st.SearchStrategy[Schedule]:
    choices: dict[str, st.SearchStrategy[Any]] = {"unroll": st.sampled_from(UNROLLS)}
    if TARGETS[target].gpu:
        memory = memory_choices(layout)
        choices = {"unroll": st.just("full"), "threads": st.none() | st.sampled_from((32, 96, 128))}
        choices |= {name: memory[name] for name in ("cache", "stride")}
        choices["split"] = st.none() | st.sampled_from(SPLITS)
    return st.builds(ThreadSchedule, st.just(1), st.just("right"), **choices)


def shared_schedules(n: int, layout: str, target: str) -> st.SearchStrategy[Schedule]:
    tiles = st.integers(1, min(n, MAX_SHARED_NB))
    return tiles.flatmap(
        lambda nb: st.builds(
            SharedSchedule,
            st.just(nb),
            st.sampled_from(LOOKINGS),
            st.none() | st.integers(1, MAX_BLOCK_THREADS // nb**2),
            **memory_choices(layout),
        )
    )


def block_schedules(n: int, layout: str, target: str) -> st.SearchStrategy[Schedule]:
    tiles = st.integers(MIN_BLOCK_NB, max(MIN_BLOCK_NB, min(n, MAX_NB)))
    lanes, blocks = st.integers(1, MAX_LANES), st.none() | st.integers(1, 32)
    return st.builds(BlockSchedule, tiles, lanes, blocks=blocks, **memory_choices(layout))


def warp_schedules(n: int, layout: str, target: str) -> st.SearchStrategy[Schedule]:
    teams = st.tuples(st.sampled_from((1, 2, 4)), st.just(1), st.sampled_from((1, 2, 4, 8))) | st.just((1, 2, 1))
    return st.tuples(teams, st.none() | st.sampled_from(UPDATES)).flatmap(
        lambda chosen: st.builds(
            WarpSchedule,
            *map(st.just, chosen[0]),
            update=st.just(chosen[1]),
            unroll=st.sampled_from(UNROLLS),
            blocks=st.none() | st.integers(1, 32),
            **memory_choices(layout),
        )
    )


def strip_schedules(n: int, layout: str, target: str) -> st.SearchStrategy[Schedule]:
    side = -(-n // TILE)
    return st.builds(
        StripSchedule,
        st.integers(side, MAX_BLOCK_THREADS // WARP_THREADS),
        st.integers(0, side - 1),
        blocks=st.none() | st.integers(1, 32),
        **memory_choices(layout) | {"stride": st.integers(1, MAX_CHUNK // GROUP).map(lambda groups: GROUP * groups)},
    )


def whole_schedules(n: int, layout: str, target: str) -> st.SearchStrategy[Schedule]:
    warps, blocks = st.integers(1, MAX_WARPS), st.none() | st.integers(1, 32)
    return st.builds(WholeSchedule, warps, blocks, **memory_choices(layout))


def memory_choices(layout: str) -> dict[str, st.SearchStrategy[Any]]:
    strides = st.none() | st.integers(2, MAX_CHUNK) if layout == "chunked" else st.none()
    return {"cache": st.none() | st.sampled_from(CACHES), "stride": strides, "pdl": st.none() | st.booleans()}


SCHEDULES = {
    "thread": thread_schedules,
    "potrs": solve_schedules,
    **dict.fromkeys(("getrf", "getrs", "gesv", "geqrf", "orgqr", "ormqr", "gels"), column_schedules),
    "shared": shared_schedules,
    "block": block_schedules,
    "warp": warp_schedules,
    "strip": strip_schedules,
    "whole": whole_schedules,
}
