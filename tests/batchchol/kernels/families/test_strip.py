"""The strip family, emulated by few blocks, so that each has several groups of matrices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from math import inf
from typing import Any

import numpy as np
import pytest

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSpec, Layout, SpecError, generate
from kernelgen.schedules.strip import GROUP, StripShape

from ....covering import Choice, covering_design
from ....emulation import checks as cuda_checks
from ....emulation.checks import (
    CompiledTogether,
    check_arrays_that_begin_anywhere,
    check_kernel,
    check_last_matrices_past_32_bits,
    mutated,
)
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import FUSED, compile_program
from ....kernel_runs import Array, Run, make_spec, run_kernel
from ....matrices import conditioned, dominant, lapack_factor, long_tails, longest_tails, wishart

strip_spec = partial(make_spec, family="strip", target="cuda", math="fast", stride=GROUP)

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 17, 48, 65, 128),
    "warps": (3, 12, 32),
    "ahead": (0, 1, 2),
    "singly": (None, True),
    # The chunk of the chunked layout, which is always a constant of the code.
    "layout": (4, 8, 32),
    "constant_chunk": (True,),
    "math": ("ieee", "fast"),
    "in_place": (False, True),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "blocks": (None, 2),
    "cache": ("l1", "shared"),
    "pdl": (None, True),
    "batch": (1, 13, 29),
}
CONSTRAINED = ("n", "warps", "ahead", "batch")
# What a case costs besides the products of its groups' tiles.
CASE_COST = 3_000


def cost_of(choice: Choice) -> float:
    """What a choice costs, in products of tiles; infinite for what is refused."""
    try:
        side = shape_of(*(choice[name] for name in CONSTRAINED[:-1])).side
    except SpecError:
        return inf
    return float(-(-choice["batch"] // GROUP) * side**3 + CASE_COST)


@cache
def shape_of(n: int, warps: int, ahead: int) -> StripShape:
    schedule: Any = strip_spec(n, warps=warps, ahead=ahead).schedule
    return StripShape(n, schedule.warps, schedule.ahead)


DESIGN = sorted(covering_design(FACTORS, CONSTRAINED, cost_of), key=lambda choice: str(choice["n"]))

spec_of = partial(cuda_checks.spec_of, family="strip")
case_id = partial(cuda_checks.case_id, family="strip")

# Padded by few rows and by many, and by about half a tile: of one strip and of several.
PADDED = [
    strip_spec(n, warps=-(-n // 16) + more, ahead=min(ahead, (n - 1) // 16), stride=stride, singly=n > 31 or None)
    for n, more, ahead, stride in zip(
        (2, 7, 8, 9, 15, 16, 24, 25, 31, 33, 63, 81),
        cycle((0, 1, 2, 5)),
        cycle((0, 1, 2)),
        cycle((4, 8, 4, 12, 32)),
        strict=False,
    )
]


emulated = CompiledTogether((spec_of(choice)[0] for choice in DESIGN), PADDED)


@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    check_kernel(spec, choice["batch"], chunk, emulated(spec))


@pytest.mark.parametrize("spec", PADDED, ids=lambda spec: spec.name)
def test_orders_that_are_padded(spec: KernelSpec) -> None:
    check_kernel(spec, 13, spec.schedule.stride, emulated(spec))


def run(spec: KernelSpec, a: Array, kernel: EmulatedKernel | None = None) -> Run:
    """Of the only chunk that the kernel has."""
    return run_kernel(spec, a.astype(np.float32), spec.schedule.stride, kernel=kernel)


@pytest.mark.parametrize("n", [26, 27])
def test_tensor_cores_keep_the_promise_of_correctly_rounded_roots(n: int) -> None:
    """Of operands that they cut as short as they can; and of exact pivots roots are the nearest numbers."""
    a = np.concatenate((long_tails(6, n), longest_tails(6, n))).astype(np.float32)
    factors = run(strip_spec(n, warps=4, ahead=1, math="ieee"), a).l
    assert ratios(a, factors).max() <= RATIO_BOUND["ieee"] * 0.75
    assert np.array_equal(factors[:, 0, 0], np.sqrt(a[:, 0, 0]))


# ---- Members that are not positive definite ----


@pytest.mark.parametrize("in_place", [False, True])
def test_ragged_batches_with_failing_members(in_place: bool) -> None:
    spec = strip_spec(20, warps=3, ahead=1, stride=8, in_place=in_place)
    a = dominant(20, 20)
    a[::3, 2, 2] = np.nan
    a[1::6, 19, 19] = -1
    expected = np.where(np.arange(20) % 3 == 0, 3, np.where(np.arange(20) % 6 == 1, 20, 0))
    whole = run(spec, a).l
    for batch in range(1, 21):
        some = run(spec, a[:batch])
        assert np.array_equal(some.info, expected[:batch])
        good = some.info == 0
        assert np.array_equal(np.tril(some.l[good]), np.tril(whole[:batch][good]))


# Of three strips: more than a half of the first tile is not of the matrix, or nothing.
@pytest.mark.parametrize(
    ("n", "value"), [(37, -1.0), (37, -0.0), (37, 0.0), (37, np.nan), (37, -np.inf), (48, -1.0), (48, np.nan)]
)
def test_the_first_bad_pivot_is_told_wherever_it_is(n: int, value: float) -> None:
    """In either half of any tile, alone and before other bad ones, with columns before it that are not changed."""
    spec, a = strip_spec(n, warps=5, ahead=1), dominant(3 * n, n)
    good = run(spec, a).l
    for m in range(n):
        a[m, m, :] = a[m, :, m] = a[n + m, m, :] = a[n + m, :, m] = 0
        a[m, m, m] = a[n + m, m, m] = value
        a[n + m, m + 1 :, m + 1 :] = np.nan
    failed = run(spec, a)
    assert failed.info.tolist() == [*range(1, n + 1), *range(1, n + 1), *[0] * n]
    assert np.array_equal(np.tril(failed.l[2 * n :]), np.tril(good[2 * n :])), "good matrices are changed"


@pytest.mark.parametrize(("n", "math"), [(37, "ieee"), (37, "fast"), (48, "fast")])
def test_columns_before_a_bad_pivot_are_those_of_the_factor(n: int, math: str) -> None:
    """As LAPACK leaves them, where the matrix is finite, whatever fails in others of a group."""
    spec, a = strip_spec(n, warps=5, ahead=1, math=math), wishart(n, n)
    factor, good = lapack_factor(a)[0], run(spec, a).l
    for m in range(n):
        a[m, m, m] = -1
    failed = run(spec, a)
    assert failed.info.tolist() == list(range(1, n + 1))
    for m in range(n):
        before = np.tril(failed.l[m])[:, :m]
        assert np.array_equal(before, np.tril(good[m])[:, :m])
        np.testing.assert_allclose(before, factor[m, :, :m], rtol=0, atol=1e-5)


def test_an_infinite_pivot_is_good_as_in_lapack() -> None:
    """In either half of a tile, and in a tile that has others to its left."""
    spec, a = strip_spec(37, warps=6), dominant(8, 37)
    good = run(spec, a).l
    places = {1: 2, 3: 15, 5: 22, 7: 36}
    for m, pivot in places.items():
        a[m, pivot, pivot] = np.inf
    infinite = run(spec, a)
    assert not infinite.info.any()
    for m, pivot in places.items():
        assert (infinite.l[m, pivot + 1 :, pivot] == 0).all()
        assert np.isposinf(infinite.l[m, pivot, pivot])
    assert np.array_equal(np.tril(infinite.l[::2]), np.tril(good[::2])), "neighbours are changed"


def test_a_warp_that_is_late_does_not_write_over_an_info() -> None:
    """Warps of the first strip go on, after what the others wait for, when the second one is done."""
    spec, a = strip_spec(37, warps=6), dominant(5, 37)
    a[:, 22, 22] = -1
    late = "if (strip == 0) wait_for(barriers_of(round) + EACH_STRIP + SECOND, phase_of(round));"
    arrival = "        arrive(barriers + SECOND);\n"
    kernel = mutated(spec, re.escape(arrival), f"{arrival}    {late}\n")
    assert (run(spec, a, kernel).info == 23).all()


# ---- Accuracy ----


def nearly_of_rank_two(count: int, n: int) -> Array:
    normal = np.random.default_rng((6, n)).standard_normal((count, n, 2))
    product: Array = normal @ normal.swapaxes(1, 2) + 1e-4 * np.eye(n)
    return product


# Condition numbers a little short of where rounding alone makes a matrix indefinite.
@pytest.mark.parametrize(
    "a",
    [conditioned(13, 33, 1e6), conditioned(5, 128, 1e6), nearly_of_rank_two(13, 64)],
    ids=["n33", "n128", "low-rank"],
)
def test_ill_conditioned(a: Array) -> None:
    assert not lapack_factor(a.astype(np.float32))[1].any(), "LAPACK factors these"
    some = run(strip_spec(a.shape[-1], warps=14), a)
    assert not some.info.any()
    assert ratios(a.astype(np.float32), some.l).max() <= RATIO_BOUND["fast"]


def test_same_bits_for_every_number_of_warps_strips_ahead_chunk_and_block() -> None:
    ways: list[dict[str, Any]] = [{"warps": 4}, {"warps": 5, "stride": 8}, {"warps": 10, "stride": 32}]
    ways += [{"warps": 7, "ahead": 1, "blocks": 2}, {"warps": 20, "ahead": 3, "blocks": 5}]
    ways += [{"warps": 8, "order": "row"}, {"warps": 12, "ahead": 2, "uplo": "upper", "in_place": True}]
    specs, a = [strip_spec(50, **way) for way in ways], wishart(21, 50)
    program = compile_program(tuple(map(generate, specs)), FUSED)
    bits = {
        np.tril(run(spec, a, EmulatedKernel(spec, generate(spec), program)).l).tobytes(): spec.name for spec in specs
    }
    assert len(bits) == 1, bits.values()


@pytest.mark.parametrize("in_place", [False, True])
def test_any_number_of_blocks_will_do(in_place: bool) -> None:
    """As many as a GPU has room for, fewer, and one to each group."""
    spec, a = strip_spec(20, warps=3, ahead=1, in_place=in_place), dominant(33, 20)
    source = generate(spec)
    assert source.launch is not None
    for resident in (1, 2, 5, 8, 9, 100):
        launched = replace(source, launch=replace(source.launch, resident=resident))
        some = run(spec, a, EmulatedKernel.of(spec, launched))
        assert not some.info.any()
        assert ratios(a.astype(np.float32), some.l).max() <= RATIO_BOUND["fast"]


# ---- Memory ----


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", [20, 21])
def test_arrays_that_begin_anywhere(n: int, in_place: bool) -> None:
    check_arrays_that_begin_anywhere(strip_spec(n, warps=3, in_place=in_place))


@pytest.mark.parametrize("stride", [4, 32])
def test_last_matrices_of_a_batch_past_32_bits(stride: int) -> None:
    spec = strip_spec(2, warps=1, stride=stride, in_place=True)
    check_last_matrices_past_32_bits(spec, Layout.chunked(stride))


def test_blocks_are_written_without_an_instruction_for_it_as_well() -> None:
    """As compute capability 8 does it, which the emulation does not choose by itself."""
    spec = strip_spec(33, warps=5)
    own = re.search(r"#else\n(#pragma unroll\n    for \(int b = 0.*?\n    }\n)#endif", generate(spec).text, re.DOTALL)
    assert own
    kernel = mutated(spec, re.escape("{ __write_blocks(row, f); }"), f"\n{{\n{own[1]}}}")
    check_kernel(spec, 5, GROUP, kernel)


@pytest.mark.parametrize(
    ("n", "where"),
    [
        (2, {}),
        (21, {}),
        (37, {}),
        (40, {}),
        (37, {"in_place": True}),
        (40, {"in_place": True}),
        (21, {"order": "row", "uplo": "upper"}),
    ],
)
def test_sectors_that_columns_share_with_the_other_triangle_are_completed(n: int, where: dict[str, Any]) -> None:
    """By zeros, out of place: where a column begins with the second half of one, or ends with the first half."""
    spec = strip_spec(n, warps=4, **where)
    shape = spec.schedule.shape(spec.problem)
    touched = run(spec, dominant(4 * GROUP, n)).l == 0
    group, i, j = np.ogrid[0:4, 0:n, 0:n]
    second_half = (group * n * n + j * n + i) % 2 == 1
    above = second_half[:, 1:, :] & (i[:, 1:] == j) & ((j + shape.pad) % 8 != 0)
    after = ~second_half[:, -1:, :-1] & ((j[..., :-1] + shape.pad) // 16 < shape.side - 1)
    expected = np.zeros((4, n, n), dtype=bool)
    if not spec.in_place:
        expected[:, :-1, :] |= above
        expected[:, :1, 1:] |= after
    assert np.array_equal(touched & ~np.tri(n, dtype=bool), np.repeat(expected, GROUP, axis=0))
