"""Schedules of the GPUs' other families: what is filled in, what a name says, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kernelgen import (
    SIMD_TARGETS,
    BlockSchedule,
    KernelSpec,
    Problem,
    SharedSchedule,
    SpecError,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    WholeSchedule,
    generate,
)
from kernelgen.problem import MATHS
from kernelgen.schedules import UPDATES, in_math

THREAD = KernelSpec(Problem(32), "chunked", "col", ThreadSchedule(4), "cuda")
SHARED = KernelSpec(Problem(32), "chunked", "col", SharedSchedule(4), "cuda")
BLOCK = KernelSpec(Problem(32), "chunked", "col", BlockSchedule(8, 8), "cuda")
PIPELINE = KernelSpec(Problem(32), "chunked", "col", BlockSchedule(8, 8, pipeline=1, early=2, spare=1), "cuda")
WARP = KernelSpec(Problem(32), "chunked", "col", WarpSchedule(), "cuda")
STRIP = KernelSpec(Problem(32, math="fast"), "chunked", "col", StripSchedule(3, stride=4), "cuda")
WHOLE = KernelSpec(Problem(32), "canonical", "row", WholeSchedule(2), "cuda")
every_other_family = pytest.mark.parametrize(
    "spec", [SHARED, BLOCK, WARP, STRIP, WHOLE], ids=lambda spec: spec.family
)


def changed(spec: KernelSpec, field: str, value: object) -> KernelSpec:
    for part in ("problem", "schedule"):
        if hasattr(getattr(spec, part), field):
            return replace(spec, **{part: replace(getattr(spec, part), **{field: value})})
    return replace(spec, **{field: value})


@every_other_family
def test_other_families_fill_in_what_nobody_chose(spec: KernelSpec) -> None:
    block = BlockSchedule(8, 8, blocks=1, pipeline=0, early=0, spare=0, fold=0, ahead=0)
    warp = WarpSchedule(1, 1, 2, "fma", "tiles", blocks=1)
    strip = StripSchedule(3, 0, blocks=1, stride=4)
    filled_in = {"shared": SharedSchedule(4, "left", 32), "block": block, "warp": warp, "strip": strip}
    filled_in["whole"] = WholeSchedule(2, blocks=1)
    assert spec.schedule == replace(filled_in[spec.family], cache="shared")
    assert replace(spec, schedule=filled_in[spec.family]) == spec


@pytest.mark.parametrize(("nb", "matrices"), [(1, 32), (5, 32), (6, 28), (8, 16), (16, 4), (17, 3), (32, 1)])
def test_a_block_of_the_shared_family_has_as_many_matrices_as_threads_suffice_for(nb: int, matrices: int) -> None:
    spec = KernelSpec(Problem(32), "chunked", "col", SharedSchedule(nb), "cuda")
    assert spec.schedule == SharedSchedule(nb, "left", matrices, cache="shared")


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        (SHARED, "looking", "top"),
        (SHARED, "matrices", 5),
        (SHARED, "nb", 3),
        (BLOCK, "nb", 4),
        (BLOCK, "lanes", 4),
        (BLOCK, "blocks", 2),
        (WARP, "matrices", 2),
        (WARP, "teams", 4),
        (WARP, "unroll", "full"),
        (WARP, "blocks", 2),
        (STRIP, "warps", 2),
        (STRIP, "ahead", 1),
        (STRIP, "blocks", 2),
        (WHOLE, "warps", 3),
        (WHOLE, "blocks", 2),
        *((WHOLE, *choice) for choice in (("cache", "l1"), ("pdl", True))),
        *((spec, "math", "fast") for spec in (SHARED, BLOCK, WARP, WHOLE)),
        (STRIP, "math", "ieee"),
        *(
            (spec, *choice)
            for spec in (SHARED, BLOCK, WARP, STRIP)
            for choice in (("cache", "l1"), ("stride", 32), ("pdl", True))
        ),
    ],
)
def test_every_choice_of_the_other_families_is_in_the_name(spec: KernelSpec, field: str, value: object) -> None:
    assert changed(spec, field, value).name != spec.name


@pytest.mark.parametrize("spec", [THREAD, SHARED, BLOCK, PIPELINE, WARP, STRIP, WHOLE], ids=lambda spec: spec.family)
def test_who_may_begin_early_waits_and_is_the_same_otherwise(spec: KernelSpec) -> None:
    """Before everything that reads or writes: only places are found, and barriers set up, before."""
    early = changed(spec, "pdl", True)
    text = generate(early).text.replace(early.name, spec.name)
    launches = [generate(each).launch for each in (spec, early)]
    assert [launch and launch.pdl for launch in launches] == [False, True]
    definition = text[text.index("/* Returns when what is ahead") : text.index("#endif\n}\n") + len("#endif\n}\n")]
    call = "    wait_for_predecessors();\n"
    assert text.count(call) == 1
    entry = text[text.index("__global__") :]
    before = re.sub(r"/\*.*?\*/", "", entry[entry.index("{") : entry.index(call)])
    assert not re.search(r"\b(read|load|store|write|fetch|factor|info|return)|\b[al] \+", before), before
    plain = generate(spec).text.split()
    assert text.replace(definition, "").replace(call, "").split() == plain


@pytest.mark.parametrize(
    ("spec", "field", "value", "works"),
    [
        (SHARED, "nb", 0, "from 1 to 32"),
        (SHARED, "nb", 33, "from 1 to 32"),
        (SHARED, "looking", "up", "'right', 'left', 'top'"),
        (SHARED, "matrices", 0, "from 1 to 1024"),
        (SHARED, "matrices", 65, "from 1 to 64"),
        (BLOCK, "nb", 3, "from 4 to 16"),
        (BLOCK, "nb", 17, "from 4 to 16"),
        (BLOCK, "lanes", 33, "use an integer from 1 to 32"),
        (BLOCK, "lanes", True, "use an integer"),
        (BLOCK, "lanes", None, "use an integer"),
        (BLOCK, "blocks", 0, "from 1 to 32"),
        (WARP, "matrices", 0, "from 1 to 4"),
        (WARP, "matrices", 3, "use a power of two"),
        (WARP, "matrices", 8, "from 1 to 4"),
        (WARP, "warps", 9, "from 1 to 8"),
        (WARP, "teams", 16, "from 1 to 8"),
        (WARP, "teams", 6, "use a power of two"),
        (WARP, "blocks", 0, "from 1 to 32"),
        (WARP, "unroll", "half", "'tiles', 'full'"),
        (WARP, "update", "wgmma", "'tensor', 'fma'"),
        (STRIP, "warps", 0, "from 1 to 32"),
        (STRIP, "warps", 33, "from 1 to 32"),
        (STRIP, "warps", None, "use an integer from 1 to 32"),
        (STRIP, "warps", 1, "n=32 has 2 strips, use from as many to 32"),
        (STRIP, "ahead", -1, "from 0 to 8"),
        (STRIP, "ahead", 9, "from 0 to 8"),
        (STRIP, "ahead", True, "use an integer"),
        (STRIP, "ahead", 2, "the last of n=32's 2 strips has none to be ahead of, use less"),
        (STRIP, "blocks", 0, "from 1 to 32"),
        (STRIP, "blocks", 33, "from 1 to 32"),
        (STRIP, "stride", None, "4 neighbouring matrices of a chunk, use 4, or another multiple of it"),
        (STRIP, "stride", 6, "4 neighbouring matrices of a chunk, use 4, or another multiple of it"),
        (STRIP, "pdl", 1, "True, False or None"),
        (WHOLE, "warps", 0, "from 1 to 16"),
        (WHOLE, "warps", 17, "from 1 to 16"),
        (WHOLE, "blocks", 33, "from 1 to 32"),
        (WHOLE, "layout", "chunked", "use 'canonical' or another family"),
        *((STRIP, "layout", layout, "use 'chunked' or another family") for layout in ("canonical", "interleaved")),
        *(
            (spec, *choice)
            for spec in (SHARED, BLOCK, WARP, STRIP)
            for choice in (
                ("math", "exact", "'ieee', 'fast'"),
                ("cache", "l2", "'l1', 'shared'"),
                ("stride", 1, "from 2 to 512"),
                ("layout", "blocked", "'chunked'"),
            )
        ),
    ],
)
def test_refusals_of_the_other_families(spec: KernelSpec, field: str, value: object, works: str) -> None:
    with pytest.raises(SpecError, match=f"^{field}={value!r} .*{works}"):
        changed(spec, field, value)


@pytest.mark.parametrize("target", SIMD_TARGETS)
@every_other_family
def test_other_families_are_those_of_gpus(spec: KernelSpec, target: str) -> None:
    with pytest.raises(SpecError, match=f"family='{spec.family}' .*'{target}' has the family 'thread' alone"):
        replace(spec, target=target)


@pytest.mark.parametrize("spec", [SHARED, BLOCK, WARP], ids=lambda spec: spec.family)
def test_other_families_have_constant_strides_of_chunks_alone(spec: KernelSpec) -> None:
    with pytest.raises(SpecError, match=r"stride=32 .*layout 'interleaved'.*use None"):
        replace(spec, layout="interleaved", schedule=replace(spec.schedule, stride=32))


def test_a_block_too_large_for_a_multiprocessor_is_refused() -> None:
    with pytest.raises(SpecError, match=r"lanes=16 .*n=64 by tiles of 4 is 2,176 threads.*fewer lanes"):
        KernelSpec(Problem(64), "chunked", "col", BlockSchedule(4, 16), "cuda")
    with pytest.raises(SpecError, match=r"lanes=16 .*n=128 by tiles of 16 is .* bytes of shared memory.*fewer lanes"):
        KernelSpec(Problem(128, "float64"), "chunked", "col", BlockSchedule(16, 16), "cuda")


def test_a_tile_of_the_block_family_may_be_larger_than_a_tiny_matrix() -> None:
    KernelSpec(Problem(1), "chunked", "col", BlockSchedule(4, 32), "cuda")
    with pytest.raises(SpecError, match=r"nb=5 .*use nb from 4 to 4"):
        KernelSpec(Problem(3), "chunked", "col", BlockSchedule(5, 32), "cuda")


def test_tensor_cores_update_by_default_where_the_math_is_fast() -> None:
    def update_of(math: str, update: str | None) -> object:
        spec = KernelSpec(Problem(32, math=math), "chunked", "col", WarpSchedule(update=update), "cuda")
        return changed(spec, "cache", "l1").schedule.update

    assert update_of("ieee", None) == "fma"
    assert update_of("fast", None) == "tensor"
    assert update_of("fast", "fma") == "fma"
    assert update_of("ieee", "tensor") == "tensor"
    names = {changed(changed(WARP, "math", m), "update", update).name for update in UPDATES for m in MATHS}
    assert len(names) == 4


def test_a_schedule_for_another_math_updates_as_that_one_does_by_default() -> None:
    fast = changed(WARP, "math", "fast")
    assert fast.schedule.update == "fma", "what a spec has settled stays"
    assert replace(fast, schedule=in_math(WARP.schedule, "ieee", "fast")).schedule.update == "tensor"
    assert in_math(WARP.schedule, "ieee", "ieee") == WARP.schedule
    assert in_math(BLOCK.schedule, "ieee", "fast") == BLOCK.schedule


def test_a_team_of_several_warps_has_a_block_and_one_matrix() -> None:
    assert WarpSchedule(1, 2, 1).warps == 2
    with pytest.raises(SpecError, match=r"^matrices=2 .*several warps has one matrix.*use 1"):
        WarpSchedule(2, 2, 1)
    with pytest.raises(SpecError, match=r"^teams=2 .*several warps has .*a block of threads to itself; use 1"):
        WarpSchedule(1, 2, 2)


@pytest.mark.parametrize(
    ("n", "schedule", "message"),
    [
        (48, WarpSchedule(4), r"^matrices=4 .*n=48 is 192 registers of each thread, over 176; use fewer"),
        (128, WarpSchedule(2), r"^matrices=2 .*n=128 is 576 registers of each thread, over 176; use fewer"),
        (128, WarpSchedule(), r"^warps=1 .*n=128 is 288 registers of each thread, over 176; use more"),
        (33, WarpSchedule(4, teams=8), r"^teams=8 .*n=33 is 57,856 bytes of shared memory, over 49,152; use fewer"),
    ],
)
def test_teams_without_room_for_their_matrices_are_refused(n: int, schedule: WarpSchedule, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        KernelSpec(Problem(n), "chunked", "col", schedule, "cuda")


@pytest.mark.parametrize(
    ("problem", "layout", "teams"),
    [
        (Problem(32, "float64"), "canonical", 2),
        (Problem(32), "chunked", 2),
        (Problem(32, op="posv"), "canonical", 2),
        (Problem(32), "canonical", 8),
    ],
)
def test_warps_go_on_to_further_arrays_of_float32_alone(problem: Problem, layout: str, teams: int) -> None:
    with pytest.raises(SpecError, match=r"^resident=True .*warps go on where they factor arrays of float32"):
        KernelSpec(problem, layout, "row", WarpSchedule(teams=teams, resident=True), "cuda")


def test_strips_have_single_precision_alone() -> None:
    with pytest.raises(SpecError, match=r"^dtype='float64' .*use float32 or another family"):
        changed(STRIP, "dtype", "float64")


def test_strips_without_room_in_shared_memory_are_refused() -> None:
    works = r"n=128 is 313,\d\d\d bytes of shared memory, over the 232,448 of a block; use less ahead"
    with pytest.raises(SpecError, match=rf"^ahead=7 .*{works}"):
        KernelSpec(Problem(128, math="fast"), "chunked", "col", StripSchedule(20, ahead=7, stride=4), "cuda")
