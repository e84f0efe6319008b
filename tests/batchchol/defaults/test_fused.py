"""The kernels that factor and solve at once by default: which family, for which batches, layouts and maths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchchol import Layout, default_spec
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.defaults.rules.fused import BATCHES, by_warps, of_several, two_kernels
from batchchol.defaults.rules.pipelines import MANY as MANY_COLUMNS
from batchchol.defaults.rules.pipelines import SEVERAL
from batchchol.defaults.rules.wholes import by_given_factors
from kernelgen import MAX_N, Problem, SpecError
from kernelgen.problem import MATHS

FEW, SOME, MANY, MOST = BATCHES
ARRAYS, SMALL, LARGE = Layout.canonical(), Layout.chunked(4), Layout.chunked(32)


def asked(n: int, layout: Layout, batch: int, math: str = "ieee", dtype: str = "float32") -> Request:
    return Request(Problem(n, dtype, op="posv", math=math), "cuda", batch=batch, arch="sm_90").on(layout)


@pytest.mark.parametrize(
    ("n", "layout", "batch", "math", "chosen"),
    [
        (15, ARRAYS, FEW, "ieee", "thread"),
        (16, ARRAYS, FEW, "ieee", "warp"),
        (19, ARRAYS, SOME, "fast", "thread"),
        (20, LARGE, FEW, "ieee", "warp"),
        (31, ARRAYS, MANY, "ieee", "thread"),
        (32, ARRAYS, MANY, "ieee", "thread"),
        (23, ARRAYS, SOME, "ieee", "thread"),
        (24, ARRAYS, SOME, "ieee", "warp"),
        (40, ARRAYS, SOME, "ieee", "block"),
        (40, ARRAYS, SOME, "fast", "warp"),
        (24, LARGE, SOME, "fast", "block"),
        (40, LARGE, FEW, "fast", "block"),
        (33, ARRAYS, MANY, "ieee", "thread"),
        (64, SMALL, MANY, "fast", "warp"),
        (64, SMALL, MANY, "ieee", "two"),
        (32, LARGE, FEW, "ieee", "warp"),
        (32, ARRAYS, MANY, "fast", "thread"),
        (28, LARGE, MANY, "fast", "thread"),
        (29, LARGE, MANY, "ieee", "thread"),
        (33, LARGE, MANY, "ieee", "block"),
        (64, LARGE, MANY, "fast", "block"),
        (48, ARRAYS, MANY, "ieee", "thread"),
        (48, ARRAYS, MANY, "fast", "thread"),
        (128, ARRAYS, MANY, "fast", "warp"),
        (64, ARRAYS, MANY, "ieee", "thread"),
        (65, ARRAYS, MANY, "ieee", "warp"),
        (128, SMALL, MANY, "fast", "strip"),
        (65, SMALL, MANY, "ieee", "strip"),
        (80, SMALL, SOME, "ieee", "warp"),
        (64, Layout.interleaved(), FEW, "fast", "two"),
    ],
    ids=str,
)
def test_who_factors_and_solves(n: int, layout: Layout, batch: int, math: str, chosen: str) -> None:
    request = asked(n, layout, batch, math)
    assert two_kernels(request) == (chosen == "two")
    at_once = layout == ARRAYS and batch in (SOME, MANY)
    assert two_kernels(request, MANY_COLUMNS) == (n > 28 and not at_once)
    if chosen != "two":
        where: dict[str, Any] = {"layout": layout.kind, "order": layout.order, "chunk": layout.chunk, "batch": batch}
        assert default_spec(n, op="posv", math=math, target="cuda", arch="sm_90", **where).family == chosen


def test_few_arrays_have_short_chains_and_small_blocks() -> None:
    for n, few, update in ((16, True, "fma"), (64, True, "tensor"), (65, None, "tensor")):
        found = default_choice(asked(n, ARRAYS, FEW)).spec.schedule
        assert (getattr(found, "few", None), getattr(found, "update", None)) == (few, update)
    for n, layout, batch, few in ((20, SMALL, FEW, True), (20, LARGE, FEW, None), (32, ARRAYS, SOME, True)):
        assert getattr(default_choice(asked(n, layout, batch)).spec.schedule, "few", None) == few
    threads = {batch: default_choice(asked(8, ARRAYS, batch)).spec.schedule.threads for batch in BATCHES}
    assert threads == {FEW: 32, SOME: 32, MANY: 128, MOST: 128}


@pytest.mark.parametrize("math", MATHS)
def test_every_order_of_arrays_has_one_kernel(math: str) -> None:
    for n in range(33, MAX_N + 1):
        for batch in BATCHES:
            found = by_warps(asked(n, ARRAYS, batch, math).plain, None, "sm_90", batch)
            assert found is not None, n
            assert not two_kernels(asked(n, ARRAYS, batch, math))


@pytest.mark.parametrize("nrhs", [1, 2, 3, MANY_COLUMNS])
def test_larger_arrays_of_float64_are_whole_on_the_chip(nrhs: int) -> None:
    for n, batch in ((40, FEW), (100, MANY), (MAX_N, MANY)):
        request = asked(n, ARRAYS, batch, dtype="float64")
        assert not two_kernels(request, nrhs)
        found = of_several(request, nrhs)
        assert (found is None) == (nrhs <= 2)
        assert (
            found
            or default_spec(
                n, op="posv", dtype="float64", layout="canonical", order="row", target="cuda", batch=batch
            )
        ).family == "whole"
    old = Request(Problem(64, "float64", op="posv"), "cuda", batch=MANY, arch="sm_75").on(ARRAYS)
    assert two_kernels(old, nrhs)


def test_what_has_no_tensor_cores_or_is_of_float64_has_two() -> None:
    old = Request(Problem(40, op="posv"), "cuda", batch=MANY, arch="sm_75").on(ARRAYS)
    assert two_kernels(old)
    assert two_kernels(asked(19, ARRAYS, FEW, dtype="float64"))
    assert two_kernels(asked(100, LARGE, FEW, dtype="float64"))
    with pytest.raises(SpecError):
        default_spec(100, op="posv", dtype="float64", target="cuda")


@pytest.mark.parametrize(("n", "family"), [(29, "warp"), (47, "warp"), (48, "whole"), (128, "whole")])
def test_tensor_cores_solve_for_several_right_hand_sides_of_arrays_at_once(n: int, family: str) -> None:
    found = of_several(asked(n, ARRAYS, MANY), SEVERAL)
    assert found is not None
    assert (found.family, getattr(found.schedule, "rhs", None)) == (family, 8)
    few = of_several(asked(n, ARRAYS, FEW), SEVERAL)
    assert getattr(few and few.schedule, "rhs", None) == 8
    some = of_several(asked(n, ARRAYS, SOME), SEVERAL)
    assert some == found


@pytest.mark.parametrize(
    ("n", "dtype", "family"),
    [(15, "float32", "thread"), (16, "float32", "warp"), (24, "float32", "warp"), (15, "float64", "thread"),
     (16, "float64", "whole"), (24, "float64", "whole"), (39, "float64", "whole"), (48, "float32", "warp"),
     (57, "float32", "whole"), (64, "float32", "warp"), (128, "float32", "whole")],
    ids=str,
)  # fmt: skip
def test_few_arrays_are_solved_by_tensor_cores_from_smaller_orders(n: int, dtype: str, family: str) -> None:
    found = of_several(asked(n, ARRAYS, FEW, dtype=dtype), SEVERAL)
    assert found is not None
    assert found.family == family


@pytest.mark.parametrize("n", [16, 64])
def test_few_packed_matrices_are_solved_by_tensor_cores(n: int) -> None:
    found = of_several(asked(n, Layout.chunked(2), FEW), SEVERAL)
    assert found is not None
    assert found.family == "warp"
    assert found.schedule.stride == 2


@pytest.mark.parametrize(("layout", "dtype"), [(LARGE, "float32"), (LARGE, "float64")], ids=str)
def test_several_right_hand_sides_have_a_warp_each(layout: Layout, dtype: str) -> None:
    request = asked(32, layout, MANY, dtype=dtype)
    shared = of_several(request, SEVERAL - 1)
    assert shared is not None
    assert (shared.family, getattr(shared.schedule, "rhs", None)) == ("block", 2)
    assert of_several(asked(32, layout, FEW, dtype=dtype), SEVERAL) is None
    found = of_several(request, SEVERAL)
    assert found is not None
    assert getattr(found.schedule, "rhs", None) == 4
    assert not two_kernels(request, SEVERAL)
    assert two_kernels(request, MANY_COLUMNS)


@pytest.mark.parametrize(
    ("n", "nrhs", "dtype", "width"),
    [(4, 3, "float32", 4), (16, 8, "float32", 8), (23, MANY_COLUMNS, "float32", 8), (24, 8, "float32", 4),
     (15, 8, "float64", 4), (3, 8, "float64", None), (16, 2, "float32", None)],
    ids=str,
)  # fmt: skip
def test_threads_solve_for_as_many_right_hand_sides_as_they_have_registers_for(
    n: int, nrhs: int, dtype: str, width: int | None
) -> None:
    for batch in (FEW, MANY) if n < 20 else (MANY,):
        found = of_several(asked(n, ARRAYS if width else LARGE, batch, dtype=dtype), nrhs)
        assert getattr(found and found.schedule, "rhs", None) == width


def test_given_factors_are_whole_for_several_right_hand_sides() -> None:
    """Of larger arrays, where a GPU has the tensor cores."""
    request = asked(64, ARRAYS, MANY)
    request = replace(request, problem=replace(request.problem, op="potrs"))
    found = by_given_factors(request, 3)
    assert found is not None
    assert (found.family, getattr(found.schedule, "rhs", None)) == ("whole", 8)
    for other in (request.on(LARGE), replace(request, target="avx2"), replace(request, arch="sm_75")):
        assert by_given_factors(other, 3) is None
    assert by_given_factors(request, 2) is None


@pytest.mark.parametrize(("n", "fold"), [(33, 1), (40, 0), (57, 4), (64, 0)])
def test_first_warps_of_padded_blocks_are_folded(n: int, fold: int) -> None:
    where: dict[str, Any] = {"layout": LARGE.kind, "order": LARGE.order, "chunk": LARGE.chunk, "batch": MANY}
    found = default_spec(n, op="posv", target="cuda", arch="sm_90", **where)
    assert getattr(found.schedule, "fold", None) == fold


@pytest.mark.parametrize(
    ("n", "dtype", "math"), [(30, "float32", "fast"), (32, "float32", "fast"), (24, "float64", "ieee")]
)
def test_threads_share_rows_for_one_right_hand_side_alone(n: int, dtype: str, math: str) -> None:
    request = asked(n, LARGE, MANY, math, dtype=dtype)
    spec = default_choice(request).spec
    assert spec.family == "thread"
    assert spec.schedule.split
    for nrhs in (2, SEVERAL, 40):
        found = of_several(request, nrhs)
        assert two_kernels(request, nrhs) or (found is not None and not getattr(found.schedule, "split", None))
    assert default_choice(asked(n, LARGE, FEW, math, dtype=dtype)).spec != spec


def test_threads_share_rows_of_small_orders_where_many_blocks_are_full() -> None:
    for math in MATHS:
        alone, shared = (default_choice(asked(24, LARGE, batch, math)).spec.schedule for batch in (MANY, 24_000))
        assert (getattr(alone, "split", None), getattr(shared, "split", None)) == (None, 4)
