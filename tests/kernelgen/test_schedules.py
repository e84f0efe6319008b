"""Schedules of the shared and the block family: what is filled in, what a name says, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelgen import SIMD_TARGETS, BlockSchedule, KernelSpec, Problem, SharedSchedule, SpecError

SHARED = KernelSpec(Problem(32), "chunked", "col", SharedSchedule(4), "cuda")
BLOCK = KernelSpec(Problem(32), "chunked", "col", BlockSchedule(8, 8), "cuda")
both = pytest.mark.parametrize("spec", [SHARED, BLOCK], ids=["shared", "block"])


def changed(spec: KernelSpec, field: str, value: object) -> KernelSpec:
    if hasattr(spec.schedule, field):
        return replace(spec, schedule=replace(spec.schedule, **{field: value}))
    return replace(spec, **{field: value})


@both
def test_other_families_fill_in_what_nobody_chose(spec: KernelSpec) -> None:
    filled_in = {"shared": SharedSchedule(4, "left", 32, cache="shared"), "block": BlockSchedule(8, 8, blocks=1)}
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
        *(
            (spec, *choice)
            for spec in (SHARED, BLOCK)
            for choice in (("math", "fast"), ("cache", "l1"), ("stride", 32))
        ),
    ],
)
def test_every_choice_of_the_other_families_is_in_the_name(spec: KernelSpec, field: str, value: object) -> None:
    assert changed(spec, field, value).name != spec.name


@pytest.mark.parametrize(
    ("spec", "field", "value", "works"),
    [
        (SHARED, "nb", 0, "from 1 to 32"),
        (SHARED, "nb", 33, "from 1 to 32"),
        (SHARED, "looking", "up", "'right', 'left', 'top'"),
        (SHARED, "matrices", 0, "from 1 to 64"),
        (SHARED, "matrices", 65, "from 1 to 64"),
        (BLOCK, "nb", 3, "from 4 to 16"),
        (BLOCK, "nb", 17, "from 4 to 16"),
        (BLOCK, "lanes", 3, "use one of 1, 2, 4, 8, 16, 32"),
        (BLOCK, "lanes", True, "use one of 1, 2"),
        (BLOCK, "lanes", None, "use one of 1, 2"),
        (BLOCK, "blocks", 0, "from 1 to 32"),
        *(
            (spec, *choice)
            for spec in (SHARED, BLOCK)
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
@both
def test_other_families_are_those_of_gpus(spec: KernelSpec, target: str) -> None:
    with pytest.raises(SpecError, match=f"family='{spec.family}' .*'{target}' has the family 'thread' alone"):
        replace(spec, target=target)


@both
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
