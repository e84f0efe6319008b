"""Tables that were measured on one GPU serve others with what those can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from batchchol.defaults.lookup import default_layout, default_spec
from batchchol.defaults.runnable import BLOCK_SHARED_KIB, has_pdl, lightened, runs_on
from batchchol.defaults.tables import Case, Entry, Table
from kernelgen import (
    TARGETS,
    BlockSchedule,
    KernelSpec,
    Launch,
    Problem,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    generate,
)
from tests.asked import choices_of

ORDERS = (1, 23, 32, 64, 97, 128)
MEASURED = "sm_90"
PIPELINE = KernelSpec(
    Problem(128, math="fast"), "chunked", "col", BlockSchedule(8, 4, stride=4, pipeline=1, early=11, spare=3), "cuda"
)


@cache
def launch_of(spec: KernelSpec) -> Launch:
    """Of what several GPUs have as their default, once."""
    launch = generate(spec).launch
    assert launch is not None
    return launch


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120", "sm_199"])
def test_defaults_of_other_gpus_ask_for_no_more_than_they_have(arch: str) -> None:
    number = int(arch[3:])
    most = BLOCK_SHARED_KIB[max(each for each in BLOCK_SHARED_KIB if each <= number)] << 10
    for n in ORDERS:
        chunk = default_layout(n, target="cuda", arch=arch).chunk
        for where in ({"chunk": chunk}, {"layout": "canonical", "order": "row"}):
            for choice in choices_of(n, target="cuda", arch=arch, math="fast", **where):
                launch = launch_of(choice.spec)
                assert launch.shared_bytes <= most, choice.spec.name
                asynchronous = choice.spec.family in ("warp", "strip") or getattr(choice.spec.schedule, "pipeline", 0)
                assert number >= 80 or not (asynchronous or getattr(choice.spec.schedule, "staged", None))


def test_the_gpu_of_the_table_has_what_was_measured(tables: Callable[..., None]) -> None:
    best, any_gpus = Entry(128, 1 << 15, PIPELINE.schedule), Entry(128, None, ThreadSchedule(4))
    cases = {Case("float32", "fast", "chunked", 4): (best,), Case("float32", "fast", "chunked"): (any_gpus,)}
    tables(Table(MEASURED, "cuda", cases))
    where = {"target": "cuda", "chunk": 4, "math": "fast", "batch": 1 << 15}
    assert default_spec(128, arch=MEASURED, **where) == default_spec(128, **where)
    assert default_spec(128, arch=MEASURED, **where) == PIPELINE
    other = default_spec(128, arch="sm_86", **where)
    assert other.schedule == any_gpus.schedule.settled(TARGETS["cuda"], other.problem)


@pytest.mark.parametrize(
    ("schedule", "layout", "least"),
    [
        (ThreadSchedule(4), "chunked", "sm_70"),
        (BlockSchedule(8, 4), "chunked", "sm_70"),
        (BlockSchedule(8, 4, pipeline=1), "chunked", "sm_80"),
        (WarpSchedule(), "chunked", "sm_80"),
        (ThreadSchedule(1, unroll="full", staged=True), "canonical", "sm_80"),
    ],
)
def test_instructions_that_are_younger(
    schedule: ThreadSchedule | BlockSchedule | WarpSchedule, layout: str, least: str
) -> None:
    spec = KernelSpec(Problem(8), layout, "col", schedule, "cuda")
    assert [runs_on(spec, arch, MEASURED) for arch in ("sm_70", "sm_75")] == [least == "sm_70"] * 2
    assert runs_on(spec, "sm_80", MEASURED)


def test_shared_memory_of_a_block() -> None:
    launch = generate(PIPELINE).launch
    assert launch is not None
    assert 163 << 10 < launch.shared_bytes < 227 << 10
    can = [arch for arch in ("sm_80", "sm_86", "sm_90a", "sm_100", "sm_120") if runs_on(PIPELINE, arch, MEASURED)]
    assert can == ["sm_90a", "sm_100"]
    assert runs_on(PIPELINE, None, MEASURED)
    with pytest.raises(ValueError, match="expected the name of a GPU architecture"):
        runs_on(PIPELINE, "hopper", MEASURED)


@pytest.mark.parametrize(
    ("schedule", "arch", "less"),
    [
        (PIPELINE.schedule, "sm_80", {"early": 8}),
        (PIPELINE.schedule, "sm_90", {}),
        (StripSchedule(24, ahead=2, stride=4), "sm_80", {"ahead": 0}),
    ],
    ids=lambda value: getattr(value, "family", None),
)
def test_less_is_ahead_of_its_turn_where_there_is_less_shared_memory(schedule: Any, arch: str, less: Any) -> None:
    spec = replace(PIPELINE, schedule=schedule)
    lighter = lightened(spec, arch, MEASURED)
    assert lighter == replace(spec, schedule=replace(spec.schedule, **less))
    for name in less:
        more = replace(spec.schedule, **(less | {name: less[name] + 1}))
        assert not runs_on(replace(spec, schedule=more), arch, MEASURED), "as much as there is room for"


def test_what_no_less_makes_fit_is_not_run() -> None:
    assert lightened(PIPELINE, "sm_86", MEASURED) is None


def test_a_choice_says_that_less_is_ahead(tables: Callable[..., None]) -> None:
    cases = {Case("float32", "fast", "chunked", 4): (Entry(128, None, PIPELINE.schedule),)}
    tables(Table(MEASURED, "cuda", cases))
    origins = {
        arch: [choice.origin for choice in choices_of(128, target="cuda", chunk=4, math="fast", arch=arch)]
        for arch in ("sm_80", MEASURED)
    }
    assert ["less ahead" in origin for found in origins.values() for origin in found] == [True, False]


def test_launches_before_predecessors_have_ended() -> None:
    archs = ("sm_75", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120", None)
    assert [arch for arch in archs if not has_pdl(arch)] == ["sm_75", "sm_86", "sm_89"]
    with pytest.raises(ValueError, match="expected the name of a GPU architecture"):
        has_pdl("hopper")


@pytest.mark.parametrize("n", [40, 64, 72, 100, 104, 112, 128])
def test_batches_go_into_chunks_whose_kernels_a_gpu_can_run(n: int) -> None:
    """Whatever the shipped table has them go into on its own GPU: a block of threads has several there too."""
    own, other = (default_layout(n, target="cuda", arch=arch) for arch in ("sm_90", "sm_80"))
    assert default_layout(n, target="cuda", arch="sm_100") == own == default_layout(n, target="cuda")
    chosen = [default_spec(n, target="cuda", arch="sm_80", chunk=layout.chunk) for layout in (own, other)]
    assert chosen[1].family in ("block", "strip")
    if chosen[0] == default_spec(n, target="cuda", arch="sm_90", chunk=own.chunk):
        assert other == own
