"""Specs: what cannot be built is refused by name, and what can keeps its identity through dictionaries and names."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from kernelgen import (
    FAMILIES,
    MAX_CHUNK,
    MAX_N,
    MAX_ON_CHIP,
    SIMD_TARGETS,
    BlockSchedule,
    KernelSpec,
    Layout,
    Problem,
    SharedSchedule,
    SpecError,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    WholeSchedule,
)
from kernelgen.schedules.budget import FULL_UNROLL_BUDGET, straight_line_operations
from kernelgen.schedules.strip import GROUP
from kernelgen.schedules.thread import DEFAULT_RHS, MAX_RHS

from .spec_strategies import specs

GOOD = KernelSpec(Problem(32), "chunked", "col", ThreadSchedule(4), "avx2")
ON_GPU = KernelSpec(Problem(32), "chunked", "col", ThreadSchedule(4), "cuda")
SOLVE = KernelSpec(Problem(32, op="potrs"), "chunked", "col", ThreadSchedule(4), "avx2")
SOLVE_ON_GPU = KernelSpec(Problem(32, op="potrs"), "chunked", "col", ThreadSchedule(4), "cuda")
SHARED = KernelSpec(Problem(32), "chunked", "col", SharedSchedule(4), "cuda")
BLOCK = KernelSpec(Problem(32), "chunked", "col", BlockSchedule(8, 8), "cuda")
WARP = KernelSpec(Problem(32), "chunked", "col", WarpSchedule(2), "cuda")
STRIP = KernelSpec(Problem(32, math="fast"), "chunked", "col", StripSchedule(3, stride=GROUP), "cuda")
WHOLE = KernelSpec(Problem(32), "canonical", "row", WholeSchedule(2), "cuda")


@given(specs())
def test_dictionary_round_trip(spec: KernelSpec) -> None:
    assert KernelSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@given(specs(), specs())
def test_names_tell_specs_apart_and_are_identifiers(one: KernelSpec, other: KernelSpec) -> None:
    assert (one.name == other.name) == (one == other)
    assert re.fullmatch(r"[a-z][a-z0-9_]{1,100}", one.name)


def flattened(spec: KernelSpec) -> dict[str, Any]:
    """Every value of a spec by the name of its field."""
    return {**asdict(spec.problem), **asdict(spec.schedule), **{f.name: getattr(spec, f.name) for f in fields(spec)}}


def changed(spec: KernelSpec, field: str, value: Any) -> KernelSpec:
    for part in ("problem", "schedule"):
        if hasattr(getattr(spec, part), field):
            return replace(spec, **{part: replace(getattr(spec, part), **{field: value})})
    return replace(spec, **{field: value})


OTHER_VALUES = {
    "n": 31,
    "dtype": "float64",
    "uplo": "upper",
    "layout": "interleaved",
    "order": "row",
    "nb": 5,
    "looking": "top",
    "unroll": "full",
    "math": "fast",
    "prefetch": not GOOD.schedule.prefetch,
    "staged": not GOOD.schedule.staged,
    "target": "generic",
    "in_place": True,
}


@pytest.mark.parametrize(("field", "value"), OTHER_VALUES.items(), ids=OTHER_VALUES.keys())
def test_every_field_is_in_the_name(field: str, value: object) -> None:
    assert changed(GOOD, field, value).name != GOOD.name


REFUSED = [
    ("n", 0, "from 1 to 335"),
    ("n", 129, "orders above 128 are of canonical arrays, on GPUs, of the family"),
    ("n", 4.0, "an integer from 1 to 335"),
    ("n", True, "an integer"),
    ("n", "4", "an integer"),
    ("dtype", "float16", "'float32', 'float64'"),
    ("dtype", None, "'float32', 'float64'"),
    ("uplo", "L", "'lower', 'upper'"),
    ("m", 0, "from 1 to 128"),
    ("m", 40, "is on square matrices, use None"),
    ("op", "getri", "'potrf', 'potrfdet'"),
    ("layout", "blocked", "'canonical', 'interleaved', 'chunked'"),
    ("order", "C", "'row', 'col'"),
    ("target", "sse9", "'avx512', 'avx2', 'generic'"),
    ("in_place", 1, "True or False"),
    ("nb", 0, "from 1 to 16"),
    ("nb", 17, "from 1 to 16"),
    ("nb", 2.0, "an integer from 1 to 16"),
    ("looking", "up", "'right', 'left', 'top'"),
    ("unroll", "half", "'tiles', 'full'"),
    ("math", "exact", "'ieee', 'fast'"),
    ("prefetch", "yes", "True, False or None"),
    ("half", "yes", "True, False or None"),
    ("half", True, "target 'avx2' has no halves of its vectors, use None"),
    ("overlap", True, "only factorizations of canonical arrays choose how groups are staged, use None"),
    ("staged", 0, "True, False or None"),
    ("threads", 0, "an integer from 1 to 512"),
    ("threads", 32, "target 'avx2' has no such choice"),
    ("blocks", 0, "an integer from 1 to 32"),
    ("blocks", 1, "target 'avx2' has no such choice"),
    ("cache", "l2", "'l1', 'shared'"),
    ("cache", "l1", "target 'avx2' has no such choice"),
    ("stride", 1, f"an integer from 2 to {MAX_CHUNK}"),
    ("stride", 32, "target 'avx2' has no such choice"),
    ("rhs", 0, "an integer from 1 to 16"),
    ("rhs", 2, "potrf has no right-hand sides, use None"),
    ("split", 0, "an integer from 1 to 480"),
    ("split", 2, "target 'avx2' has no such choice"),
    ("pdl", 1, "True, False or None"),
    ("pdl", True, "target 'avx2' has no such choice"),
]


@pytest.mark.parametrize(("field", "value", "works"), REFUSED)
def test_refusal_names_the_field_the_value_and_what_works(field: str, value: object, works: str) -> None:
    with pytest.raises(SpecError) as refusal:
        changed(GOOD, field, value)
    message = str(refusal.value)
    assert message.startswith(f"{field}={value!r} ")
    assert works in message


@pytest.mark.parametrize("field", ["n", "dtype", "uplo", "layout", "order", "nb", "unroll", "math", "target", "rhs"])
def test_every_choice_of_a_solve_is_in_the_name(field: str) -> None:
    value = 3 if field == "rhs" else OTHER_VALUES[field]
    spec = changed(SOLVE, "rhs", 2) if field == "unroll" else SOLVE
    assert changed(spec, field, value).name != spec.name
    assert changed(SOLVE, "staged", False).name != SOLVE.name == changed(SOLVE, "rhs", DEFAULT_RHS).name


@pytest.mark.parametrize(
    ("spec", "field", "value", "works"),
    [
        (SOLVE, "op", "potrf", "rhs=4 .*potrf has no right-hand sides, use None"),
        (GOOD, "op", "potrs", "prefetch=True .*potrs does not prefetch, use False"),
        (SOLVE, "prefetch", True, "prefetch=True .*potrs does not prefetch, use False"),
        (SOLVE, "looking", "right", "looking='right' .*potrs has no such choice, use 'left'"),
        (SOLVE, "in_place", True, "in_place=True .*the same kernel solves in place and out of place, use False"),
        (SOLVE, "rhs", MAX_RHS + 1, "rhs=17 .*an integer from 1 to 16"),
        (SOLVE, "unroll", "tiles ", "unroll='tiles ' .*'tiles', 'full'"),
        (changed(SOLVE, "rhs", 7), "unroll", "full", "unroll='full' .*7,168 operations .*over the budget"),
        (changed(SOLVE, "layout", "canonical"), "staged", False, "staged=False .*use staged=True"),
        (SOLVE_ON_GPU, "split", 2, "split=2 .*only staged solves by given factors have several threads to a matrix"),
        (SOLVE_ON_GPU, "stride", 32, "stride=32 .*potrs has no such choice, use None"),
        (SOLVE_ON_GPU, "pdl", True, "pdl=True .*solves by factors where they are do not wait"),
        (SOLVE_ON_GPU, "blocks", 2, "blocks=2 .*potrs has no such choice, use None"),
        *(
            (each, "op", "potrs", "op='potrs' .*has potrf(, posv)?, use another family")
            for each in (SHARED, BLOCK, WARP, STRIP)
        ),
    ],
)
def test_what_a_solve_has_no_choice_of_is_refused(spec: KernelSpec, field: str, value: object, works: str) -> None:
    with pytest.raises(SpecError, match=f"^{works}"):
        changed(spec, field, value)


@pytest.mark.parametrize("spec", [GOOD, ON_GPU, SOLVE, SHARED, BLOCK, WARP, STRIP], ids=lambda spec: spec.family)
def test_integers_of_numpy_become_plain_ones(spec: KernelSpec) -> None:
    for field, value in flattened(spec).items():
        if type(value) is int:
            same = changed(spec, field, np.int64(value))
            assert same == spec
            assert type(flattened(same)[field]) is int, field
            with pytest.raises(SpecError, match=f"^{field}=.*True.* use an integer"):
                changed(spec, field, np.True_)


def test_chunks_of_numpy_become_plain_ones() -> None:
    assert type(Layout.chunked(np.int16(16)).chunk) is int
    assert Layout.chunked(np.int16(16)) == Layout.chunked(16)


def test_every_field_is_refused_somewhere_above() -> None:
    parts = {"problem", "schedule"}
    assert set(flattened(GOOD)) - parts == {field for field, _, _ in REFUSED}


def test_halves_of_vectors_are_for_factorizations_of_arrays() -> None:
    wide = changed(GOOD, "target", "avx512")
    with pytest.raises(SpecError, match=r"^half=True .*only factorizations of canonical arrays choose how groups"):
        changed(wide, "half", True)
    arrays = changed(wide, "layout", "canonical")
    assert (arrays.lanes, changed(arrays, "half", True).lanes) == (16, 8)
    assert changed(arrays, "half", False) == arrays


@pytest.mark.parametrize(("field", "value"), [("prefetch", True), ("prefetch", False)])
def test_choices_of_simd_targets_are_refused_on_a_gpu(field: str, value: object) -> None:
    with pytest.raises(SpecError, match=f"{field}={value} .*'cuda' has no such choice, use None"):
        changed(ON_GPU, field, value)


@pytest.mark.parametrize("layout", ["canonical", "interleaved"])
def test_a_constant_stride_belongs_to_the_chunked_layout(layout: str) -> None:
    with pytest.raises(SpecError, match=f"stride=32 .*layout '{layout}'.*use None"):
        changed(changed(ON_GPU, "layout", layout), "stride", 32)


def test_what_nobody_chose_is_filled_in() -> None:
    on_cpu = KernelSpec(Problem(4), "chunked", "col", ThreadSchedule(2), "avx2").schedule
    assert (on_cpu.prefetch, on_cpu.staged, on_cpu.threads, on_cpu.cache, on_cpu.stride) == (
        True,
        True,
        None,
        None,
        None,
    )
    on_gpu = ON_GPU.schedule
    assert (on_gpu.prefetch, on_gpu.staged, on_gpu.threads, on_gpu.cache, on_gpu.stride) == (
        None,
        None,
        32,
        "l1",
        None,
    )
    assert changed(ON_GPU, "threads", 32) == changed(ON_GPU, "pdl", False) == ON_GPU


@pytest.mark.parametrize(("field", "value"), [("threads", 64), ("cache", "shared"), ("stride", 32), ("pdl", True)])
def test_every_choice_of_a_gpu_is_in_the_name(field: str, value: object) -> None:
    assert changed(ON_GPU, field, value).name != ON_GPU.name


def test_dictionaries_name_the_family_and_old_ones_are_of_the_thread_family() -> None:
    families = [spec.to_dict()["schedule"]["family"] for spec in (GOOD, SHARED, BLOCK, WARP, STRIP, WHOLE)]
    assert families == list(FAMILIES) == ["thread", "shared", "block", "warp", "strip", "whole"]
    values = GOOD.to_dict()
    del values["schedule"]["family"]
    assert KernelSpec.from_dict(values) == GOOD


@pytest.mark.parametrize("spec", [GOOD, STRIP], ids=lambda spec: spec.family)
def test_the_math_of_older_dictionaries_is_the_schedules(spec: KernelSpec) -> None:
    values = spec.to_dict()
    values["schedule"]["math"] = values["problem"].pop("math")
    assert KernelSpec.from_dict(values) == spec


def test_tile_larger_than_the_matrix_is_refused() -> None:
    with pytest.raises(SpecError, match=r"nb=4 .*use nb from 1 to 3"):
        changed(GOOD, "n", 3)


def test_canonical_arrays_without_a_staged_chunk_are_refused() -> None:
    with pytest.raises(SpecError, match=r"staged=False .*canonical.*use staged=True"):
        changed(changed(GOOD, "staged", False), "layout", "canonical")


STAGED = KernelSpec(Problem(16), "canonical", "row", ThreadSchedule(4, unroll="full", staged=True), "cuda")


def test_a_gpu_stages_canonical_arrays_if_asked_to() -> None:
    assert (STAGED.schedule.threads, STAGED.schedule.cache) == (32, "shared")
    assert "_staged_t32_shared" in STAGED.name
    direct = changed(STAGED, "staged", False)
    assert direct.schedule == replace(STAGED.schedule, staged=None)
    assert direct.name == STAGED.name.replace("_staged", "")


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [
        ("layout", "interleaved", "staged=True .*neighbours in memory.*use None"),
        ("unroll", "tiles", "unroll='tiles' .*use 'full'"),
        ("threads", 48, "threads=48 .*use a multiple of 32"),
        ("threads", 256, "threads=256 .*n=16 is 266,240 bytes of shared memory, over the 232,448 .*use fewer"),
    ],
)
def test_what_a_gpu_cannot_stage_is_refused(field: str, value: object, refused: str) -> None:
    with pytest.raises(SpecError, match=f"^{refused}"):
        changed(STAGED, field, value)


def test_full_unrolling_is_refused_over_its_budget_and_not_before() -> None:
    largest = max(n for n in range(1, MAX_N + 1) if straight_line_operations(n) <= FULL_UNROLL_BUDGET)
    changed(changed(GOOD, "n", largest), "unroll", "full")
    with pytest.raises(SpecError, match=rf"unroll='full' .*n={largest + 1} .*6,600.*unroll='tiles'"):
        changed(changed(GOOD, "n", largest + 1), "unroll", "full")


@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_straight_line_operations_are_counted_one_by_one(n: int) -> None:
    multiply_adds = sum(1 for j in range(n) for i in range(j, n) for _ in range(j))
    assert straight_line_operations(n) == multiply_adds + n * (n + 1) // 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("blocked",), "layout='blocked' .*'chunked'"),
        (("chunked", 16, "F"), "order='F' .*'row', 'col'"),
        (("chunked",), f"chunk=None .*from 2 to {MAX_CHUNK}"),
        (("chunked", 1), f"chunk=1 .*from 2 to {MAX_CHUNK}"),
        (("chunked", MAX_CHUNK + 1), f"chunk=513 .*from 2 to {MAX_CHUNK}"),
        (("chunked", 16.0), "chunk=16.0 .*an integer"),
        (("canonical", 16), "chunk=16 .*'canonical' has no chunk"),
        (("interleaved", 16), "chunk=16 .*'interleaved' has no chunk"),
    ],
)
def test_impossible_layouts_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Layout(*arguments)


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values.pop("problem"),
        lambda values: values.pop("target"),
        lambda values: values["schedule"].pop("nb"),
        lambda values: values["schedule"].update(family="grid"),
        lambda values: values["schedule"].update(family="block"),
        lambda values: values.update(colour="red"),
        lambda values: values["problem"].update(k=3),
        lambda values: values.update(problem=32),
        lambda values: values.update(schedule=None),
    ],
)
def test_dictionaries_of_something_else_are_refused(damage: Any) -> None:
    values = GOOD.to_dict()
    damage(values)
    with pytest.raises(SpecError, match="not a kernel spec"):
        KernelSpec.from_dict(values)


@pytest.mark.parametrize("target", SIMD_TARGETS)
def test_lanes_fill_a_register(target: str) -> None:
    single = changed(GOOD, "target", target)
    double = changed(single, "dtype", "float64")
    assert single.lanes * 4 == double.lanes * 8 == SIMD_TARGETS[target].vector_bytes


@pytest.mark.parametrize("dtype", MAX_ON_CHIP)
def test_orders_above_those_of_all_kernels(dtype: str) -> None:
    """Of arrays that a GPU factors, as far as they fit."""
    most = MAX_ON_CHIP[dtype]
    spec = KernelSpec(Problem(most, dtype), "canonical", "row", WholeSchedule(12), "cuda")
    with pytest.raises(SpecError, match=f"n={most + 1} cannot be built: use an integer from 1 to {most}"):
        Problem(most + 1, dtype)
    with pytest.raises(SpecError, match="n=129 cannot be built: use an integer from 1 to 128"):
        Problem(129, dtype, op="posv")
    for refused in ({"schedule": ThreadSchedule(4)}, {"layout": "chunked"}, {"target": "avx2"}):
        with pytest.raises(SpecError, match=f"n={most} cannot be built: .* of the family 'whole'"):
            replace(spec, **refused)
