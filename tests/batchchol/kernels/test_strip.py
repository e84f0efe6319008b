"""The strip family, emulated by few blocks, so that each has several groups: what each wait and product is for."""

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

from ... import cuda_checks
from ...covering import Choice, covering_design
from ...cuda_checks import (
    CompiledTogether,
    check_arrays_that_begin_anywhere,
    check_kernel,
    check_last_matrices_past_32_bits,
    mutated,
    run_or_error,
)
from ...cuda_kernels import EmulatedKernel
from ...cuda_programs import FUSED, compile_program
from ...kernel_runs import Array, Run, make_spec, run_kernel
from ...matrices import DATA, conditioned, dominant, lapack_factor, wishart

strip_spec = partial(make_spec, family="strip", target="cuda", math="fast", stride=GROUP)

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 17, 48, 65, 128),
    "warps": (3, 12, 32),
    "ahead": (0, 1, 2),
    # The chunk of the chunked layout, which is always a constant of the code.
    "layout": (4, 8, 32),
    "constant_chunk": (True,),
    "math": ("fast",),
    "in_place": (False, True),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "blocks": (None, 2),
    "cache": ("l1", "shared"),
    "pdl": (None, True),
    "batch": (1, 13, 45),
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
    strip_spec(n, warps=-(-n // 16) + more, ahead=min(ahead, (n - 1) // 16), stride=stride)
    for n, more, ahead, stride in zip(
        (2, 7, 8, 9, 15, 16, 24, 25, 31, 33, 63, 81, 127),
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
@pytest.mark.parametrize("n", [37, 48])
@pytest.mark.parametrize("value", [-1.0, -0.0, 0.0, np.nan, -np.inf])
def test_the_first_bad_pivot_is_told_wherever_it_is(value: float, n: int) -> None:
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


@pytest.mark.parametrize("n", [37, 48])
def test_columns_before_a_bad_pivot_are_those_of_the_factor(n: int) -> None:
    """As LAPACK leaves them, where the matrix is finite."""
    spec, a = strip_spec(n, warps=5, ahead=1), wishart(n, n)
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
    ways: list[dict[str, Any]] = [{"warps": warps} for warps in (4, 5, 8, 10)]
    ways += [{"warps": warps, "ahead": ahead} for warps, ahead in ((8, 1), (12, 2), (20, 3))]
    ways += [{"warps": 10, "stride": stride} for stride in (8, 32)]
    ways += [{"warps": 7, "blocks": blocks, "ahead": blocks % 3} for blocks in (2, 5)]
    ways += [{"warps": 7, "order": "row"}, {"warps": 7, "uplo": "upper", "in_place": True}]
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


# ---- One line changed ----

# Four strips, whose warps take turns within a group of matrices and from one to the next, the first two with two
# places; or one warp to each tile and one place.
MUTATED = strip_spec(60, warps=7, ahead=2)
ONE_PLACE = strip_spec(60, warps=10)
# Half of the first strip is padding, and tiles are handed over by halves.
HALVED = strip_spec(56, warps=10)
# Every other column begins in the middle of a sector, with the last row of the tile above.
UNEVEN = strip_spec(61, warps=10)
UNEVEN_HALVED = strip_spec(55, warps=10)
# More warps than tiles: each has one of every second group.
CROWDED = strip_spec(60, warps=20)
MUTATED_BATCH = 7 * GROUP
ROOM = r"wait_for_room\(strip, round\);"
LEFT = r"wait_for\(barriers_of\(round\) \+ part_of\(before \+ row, part\), .*\);"
ABOVE = r"wait_for\(barriers_of\(round\) \+ part_of\(first_tile\(strip\) \+ row - 1 - strip, half\), .*\);"
DIAGONAL = r"wait_for\(barriers_of\(round\) \+ EACH_STRIP \* strip \+ \(half \? SECOND : FIRST\), .*\);"
TOLD = r"if \(lane == 0 && half >= 2 - PARTS\)"
# A wait, an arrival or what is handed over: dropped, something depends on what runs first, or nothing goes on. Not
# here is what no order of the emulation misses: the tile on the right is always done before the one on the left;
# exchanges between lanes order their accesses where a used strip is told of and where one is written over; and
# whoever waits for a second half goes on when all lanes have written it, with or without the barrier before.
DROPPED: Mapping[str, Sequence[Any]] = {
    "setting up": (MUTATED, r"set_up_barriers\(\);"),
    "all threads knowing of it": (MUTATED, r"__syncthreads\(\);"),
    "waiting for a tile on the left": (ONE_PLACE, LEFT),
    "a diagonal tile waiting for a used strip": (ONE_PLACE, rf"{ROOM}(?=\n +__syncwarp\(\);\n +write_fragments)"),
    "a tile below waiting for a used strip": (ONE_PLACE, rf"{ROOM}(?=\n +__syncwarp\(\);\n +const Rows)"),
    "waiting for the first half": (
        ONE_PLACE,
        DIAGONAL,
        "if (half) wait_for(barriers_of(round) + EACH_STRIP * strip + SECOND, phase_of(round));",
    ),
    "waiting for the second half": (
        ONE_PLACE,
        DIAGONAL,
        "wait_for(barriers_of(round) + EACH_STRIP * strip + FIRST, phase_of(round));",
    ),
    "waiting for the right phase": (
        ONE_PLACE,
        LEFT,
        "wait_for(barriers_of(round) + part_of(before + row, part), 0);",
    ),
    "waiting for a second half on the left": (HALVED, LEFT, "wait_for(barriers_of(round) + 2 * (before + row), 0);"),
    "waiting for the tile above": (UNEVEN, ABOVE),
    "waiting for the second half above": (
        UNEVEN_HALVED,
        ABOVE,
        "wait_for(barriers_of(round) + part_of(first_tile(strip) + row - 1 - strip, 0), phase_of(round));",
    ),
    "telling of the first half on the left": (HALVED, TOLD, "if (lane == 0 && half)"),
    "waiting for both places": (MUTATED, r"const unsigned places = .*;", "const unsigned places = 2;"),
    "arriving at a used strip": (MUTATED, r"arrive_as_warp\(barriers_of\(round\) \+ EACH_STRIP \* k .*\);"),
    "a diagonal tile arriving there": (MUTATED, r"arrive_as_warp\(barriers \+ EMPTY\);"),
    "a tile below arriving there": (UNEVEN, r"arrive_as_warp\(barriers_of\(round\) \+ EACH_STRIP \* strip .*\);"),
    "arriving at a first half": (MUTATED, r"arrive\(barriers \+ FIRST\);"),
    "arriving at a second half": (MUTATED, r"arrive\(barriers \+ SECOND\);"),
    "arriving at a tile": (MUTATED, r"arrive\(barriers_of\(round\) \+ part_of\(first_tile.*\);"),
    "arriving only where somebody waits": (MUTATED, r"if \(lane == 0 && awaited\)(?=\n +arrive\(barriers \+ FIRST)"),
    "all lanes having a square": (ONE_PLACE, r"__syncwarp\(\);(?=\n#pragma unroll\n +for \(int p)"),
    "a diagonal tile being there": (ONE_PLACE, r"__syncwarp\(\);(?=\n#pragma unroll\n +for \(int half)"),
    "a first half being factored": (ONE_PLACE, r"__syncwarp\(\);(?=\n.*\n +arrive\(barriers \+ FIRST\))"),
    "what is left of the second one being there": (ONE_PLACE, r"__syncwarp\(\);(?=\n +}\n +}\n +note_pivots)"),
    "a half below being there": (ONE_PLACE, r"__syncwarp\(\);(?=\n +read_row)"),
    "a half below being solved for": (ONE_PLACE, r"__syncwarp\(\);(?=\n.*\n +if \(lane == 0 && half)"),
    "an update": (MUTATED, r"update\(c, .*\);", "(void)left, (void)right;"),
    "an update of a diagonal tile's second half": (MUTATED, r"update_half\(c, tile, tile\);"),
    "an update of a second half": (MUTATED, r"update_half\(c, tile, tile_at\(strip, strip, round\)\);"),
    "a solution": (MUTATED, r"solve_half\(x, .*\);"),
    "a lower half": (MUTATED, r"write_last_rows\(second, c, 1\);(?=\n +__syncwarp\(\);\n#pragma unroll\n)"),
}


def fails_or_is_wrong(spec: KernelSpec, kernel: EmulatedKernel, name: str) -> bool:
    """In whatever order threads run, far apart within warps as well."""
    a = DATA[name](MUTATED_BATCH, spec.problem.n).astype(np.float32)
    outcome = run_or_error(spec, kernel.source, a)
    if isinstance(outcome, Run):
        return bool(outcome.info.any() or not ratios(a, outcome.l).max() <= RATIO_BOUND["fast"])
    assert re.search("depends on the order|waits at|was not set up|under way|not all threads", outcome)
    return True


@pytest.mark.parametrize("line", DROPPED)
def test_every_line_is_needed(line: str) -> None:
    spec, pattern, *replacement = DROPPED[line]
    kernel = mutated(spec, rf"(?<=\n)(?P<indent> +){pattern}", f"    {''.join(replacement) or '{}'}")
    for name in DATA:
        assert fails_or_is_wrong(spec, kernel, name), name


def test_groups_need_barriers_by_turns() -> None:
    kernel = mutated(CROWDED, r"TURNS = 4", "TURNS = 1")
    assert any(fails_or_is_wrong(CROWDED, kernel, name) for name in DATA)


@pytest.mark.parametrize(
    "spec", [MUTATED, ONE_PLACE, HALVED, UNEVEN, UNEVEN_HALVED, CROWDED], ids=lambda spec: spec.name
)
def test_unchanged_it_does_not_depend_on_the_order_of_threads(spec: KernelSpec) -> None:
    for name in DATA:
        assert not fails_or_is_wrong(spec, EmulatedKernel.of(spec), name)


# All but the product of both tails of `update_half`, which is as small as what the others round.
PRODUCTS = {
    "of tails on the left": (r"product = 0; product < 3", "product = 1; product < 3"),
    "of tails on the right": (r"product == 1 \? t\[m\]", "product == 3 ? t[m]"),
    "of a half's heads alone": (r"product = 0; product < 4", "product = 3; product < 4"),
    "of a half's tails on the right": (r"product = 0; product < 4", "product = 2; product < 4"),
    "heads of all bits": (r"& 0xffffe000u", ""),
    "no tails": (r"return x - head\(x\);", "return 0 * x;"),
}


@pytest.mark.parametrize("change", PRODUCTS)
def test_products_of_tails_are_needed(change: str) -> None:
    kernel = mutated(ONE_PLACE, *PRODUCTS[change])
    for name, make in DATA.items():
        a = make(3, 60).astype(np.float32)
        some = run(ONE_PLACE, a, kernel)
        assert some.info.any() or ratios(a, some.l).max() > 10 * RATIO_BOUND["fast"], name
