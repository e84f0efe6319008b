"""The warp family, emulated: every parameter value, wide and narrow accesses, what barriers and products are for."""

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
from kernelgen.schedules.warp import WarpShape

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
from ....emulation.programs import FUSED, EmulationError, compile_program
from ....kernel_runs import make_spec, run_kernel
from ....matrices import DATA, conditioned, dominant, lapack_factor, long_tails, longest_tails, wishart

warp_spec = partial(make_spec, family="warp", target="cuda")

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 8, 17, 33, 65, 96, 127),
    "matrices": (1, 2, 4),
    "warps": (1, 2),
    "teams": (1, 2, 4, 8),
    "update": ("tensor", "fma"),
    "math": ("ieee", "fast"),
    "unroll": ("tiles", "full"),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 2, 3, 4, 33),
    # Whether the chunk is a constant of the code, where there is a chunk.
    "constant_chunk": (False, True),
    "in_place": (False, True),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "blocks": (None, 2),
    "cache": ("l1", "shared"),
    "batch": (1, 5, 13),
}
CONSTRAINED = ("n", "matrices", "warps", "teams", "update", "math", "batch")
# What a case costs besides its lines of code, and turns of lanes at what they do together that take as long as one.
CASE_COST, TURNS_OF_A_LINE = 500, 100


def cost_of(choice: Choice) -> float:
    """What a choice costs, in lines of code; infinite for what is refused."""
    if choice["warps"] > 1 < choice["teams"]:
        return inf
    try:
        warp_spec(**{name: choice[name] for name in ("n", "matrices", "warps", "teams")})
        lines, collectives = code_of(*(choice[name] for name in ("n", "matrices", "warps", "update")))
    except SpecError:
        return inf
    turns = -(-choice["batch"] // choice["matrices"]) * 32 * collectives
    return lines + turns / TURNS_OF_A_LINE + CASE_COST


@cache
def code_of(n: int, matrices: int, warps: int, update: str) -> tuple[int, int]:
    """Lines of a kernel, and places where the lanes of a warp do something together."""
    text = generate(warp_spec(n, matrices=matrices, warps=warps, teams=1, update=update, math="fast")).text
    return text.count("\n"), len(re.findall("read_blocks|write_blocks|multiply_add|__sync", text))


DESIGN = sorted(
    covering_design(FACTORS, CONSTRAINED, cost_of), key=lambda choice: (choice["math"], choice["update"], choice["n"])
)

spec_of = partial(cuda_checks.spec_of, family="warp")
case_id = partial(cuda_checks.case_id, family="warp")

# Every order to 18, and those at which larger ones have one tile more or less, in every layout and both orders.
EVERY_ORDER = [
    warp_spec(n, matrices=matrices, math=math, layout=layout, order=order)
    for n, matrices, math, (layout, order) in zip(
        (*range(1, 19), 25, 31, 32, 33, 34, 39, 41, 49, 55, 56, 57, 72, 80, 63),
        cycle((1, 2, 1)),
        cycle(("fast", "ieee")),
        cycle(
            (
                ("canonical", "row"),
                ("chunked", "col"),
                ("canonical", "row"),
                ("interleaved", "row"),
                ("canonical", "col"),
            )
        ),
        strict=False,
    )
]


emulated = CompiledTogether(
    (spec_of(choice)[0] for choice in DESIGN), sorted(EVERY_ORDER, key=lambda spec: spec.problem.math)
)


@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    check_kernel(spec, choice["batch"], chunk, emulated(spec))


@pytest.mark.parametrize("spec", EVERY_ORDER, ids=lambda spec: spec.name)
def test_every_order(spec: KernelSpec) -> None:
    check_kernel(spec, 5, 3, emulated(spec))


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_ragged_batches_with_failing_members(math: str, layout: str) -> None:
    spec = warp_spec(10, matrices=4, teams=2, math=math, layout=layout, order="row")
    a = dominant(20, 10).astype(np.float32)
    a[::3, 2, 2] = np.nan
    a[1::6, 9, 9] = -1
    expected = np.where(np.arange(20) % 3 == 0, 3, np.where(np.arange(20) % 6 == 1, 10, 0))
    whole = run_kernel(spec, a, 3 if layout == "chunked" else None).l
    for batch in range(1, 21):
        run = run_kernel(spec, a[:batch])
        assert np.array_equal(run.info, expected[:batch])
        good = run.info == 0
        assert np.array_equal(np.tril(run.l[good]), np.tril(whole[:batch][good]))


@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_same_bits_for_every_layout_chunk_and_team(math: str) -> None:
    a = wishart(13, 21).astype(np.float32)
    places: list[dict[str, Any]] = [
        {},
        {"stride": 4},
        {"layout": "canonical", "order": "row"},
        {"layout": "canonical"},
        {"layout": "interleaved"},
    ]
    ways: list[dict[str, Any]] = [*({"teams": 1, **place} for place in places)]
    ways += [{"matrices": 2}, {"matrices": 4, "teams": 4}, {"warps": 2, "teams": 1}, {"unroll": "full"}]
    specs = [warp_spec(21, math=math, **way) for way in ways]
    program = compile_program(tuple(map(generate, specs)), FUSED)
    results = {
        (spec.name, chunk): np.tril(
            run_kernel(spec, a, chunk, kernel=EmulatedKernel(spec, source, program)).l
        ).tobytes()
        for spec, source in zip(specs, map(generate, specs), strict=True)
        for chunk in chunks_of(spec)
    }
    assert len(set(results.values())) == 1


def chunks_of(spec: KernelSpec) -> tuple[int | None, ...]:
    if spec.layout != "chunked":
        return (None,)
    return (spec.schedule.stride,) if spec.schedule.stride else (2, 3, 8, 33)


@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_an_infinite_pivot_is_good_as_in_lapack(math: str) -> None:
    a = dominant(6, 12).astype(np.float32)
    good = run_kernel(warp_spec(12, matrices=2, math=math), a).l
    a[1::2, 2, 2] = np.inf
    run = run_kernel(warp_spec(12, matrices=2, math=math), a)
    assert not run.info.any()
    assert (run.l[1::2, 3:, 2] == 0).all()
    assert np.isposinf(run.l[1::2, 2, 2]).all()
    assert np.array_equal(np.tril(run.l[::2]), np.tril(good[::2])), "neighbours are changed"


def test_pivots_that_are_tiny() -> None:
    """Those that the short way to roots and reciprocals is not for: all that changes is the factor's exponents."""
    a, spec = dominant(3, 20).astype(np.float32), warp_spec(20)
    assert np.array_equal(
        np.tril(run_kernel(spec, np.ldexp(a, -112)).l), np.ldexp(np.tril(run_kernel(spec, a).l), -56)
    )


# Condition numbers a little short of where rounding alone makes a matrix indefinite.
@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_ill_conditioned(math: str) -> None:
    a = conditioned(13, 33, 1e6).astype(np.float32)
    assert not lapack_factor(a)[1].any(), "LAPACK factors these"
    run = run_kernel(warp_spec(33, math=math), a)
    assert not run.info.any()
    assert ratios(a, run.l).max() <= RATIO_BOUND[math]


@pytest.mark.parametrize("n", [26, 27])
def test_tensor_cores_keep_the_promise_of_correctly_rounded_roots(n: int) -> None:
    """Of operands that they cut as short as they can; and of exact pivots roots are the nearest numbers."""
    a = np.concatenate((long_tails(6, n), longest_tails(6, n))).astype(np.float32)
    run = run_kernel(warp_spec(n, matrices=2, update="tensor", layout="canonical", order="row"), a)
    assert ratios(a, run.l).max() <= RATIO_BOUND["ieee"] * 0.75
    assert np.array_equal(run.l[:, 0, 0], np.sqrt(a[:, 0, 0]))


# ---- Wide accesses ----


@pytest.mark.parametrize(
    ("matrices", "stride", "layout", "together"),
    [
        (2, 2, "chunked", True),
        (4, 32, "chunked", True),
        (2, 33, "chunked", False),
        (4, 2, "chunked", False),
        (1, 32, "chunked", False),
        (4, None, "chunked", False),
        (4, None, "interleaved", False),
    ],
)
def test_matrices_side_by_side_are_read_together(
    matrices: int, stride: int | None, layout: str, together: bool
) -> None:
    text = generate(warp_spec(9, matrices=matrices, stride=stride, layout=layout)).text
    assert ("struct Together" in text) == together


@pytest.mark.parametrize("matrices", [2, 4])
def test_packed_arrays_that_begin_anywhere(matrices: int) -> None:
    spec = warp_spec(9, matrices=matrices, stride=4)
    check_arrays_that_begin_anywhere(spec)


# Columns that begin anywhere are read by the lines that they are in.
BY_LINES = [
    warp_spec(n, stride=2, math=math, **choices)
    for n, math, choices in (
        (49, "ieee", {"unroll": "full"}),
        (58, "ieee", {"teams": 8, "in_place": True}),
        (65, "fast", {"teams": 8}),
        (79, "fast", {"uplo": "upper", "order": "row"}),
        (95, "fast", {"in_place": True}),
    )
]


@pytest.mark.parametrize("spec", BY_LINES, ids=lambda spec: spec.name)
def test_columns_that_begin_anywhere_are_read_by_lines(spec: KernelSpec) -> None:
    assert "is_ahead" in generate(spec).text
    check_kernel(spec, 5, 2)
    check_arrays_that_begin_anywhere(spec, batch=5)


@pytest.mark.parametrize(
    "choice", [{"n": 57}, {"n": 64}, {"stride": 4}, {"stride": None}, {"matrices": 2}, {"order": "row"}], ids=str
)
def test_other_columns_are_read_as_they_are(choice: dict[str, Any]) -> None:
    assert "is_ahead" not in generate(warp_spec(**{"n": 62, "stride": 2, "math": "fast", **choice})).text


@pytest.mark.parametrize("n", [8, 12, 13])
@pytest.mark.parametrize("in_place", [False, True])
def test_canonical_arrays_that_begin_anywhere(in_place: bool, n: int) -> None:
    spec = warp_spec(n, matrices=2, layout="canonical", order="row", in_place=in_place)
    assert ("fetch_piece" in generate(spec).text) == (n % 4 == 0)
    check_arrays_that_begin_anywhere(spec)


@pytest.mark.parametrize(("n", "warps"), [(17, 1), (18, 1), (27, 2), (87, 1)])
def test_rows_that_begin_anywhere_come_by_pieces_of_memory(n: int, warps: int) -> None:
    spec = warp_spec(n, warps=warps, teams=1, layout="canonical", order="row", in_place=n == 18)
    assert "shift_of" in generate(spec).text
    check_arrays_that_begin_anywhere(spec, batch=3)


@pytest.mark.parametrize(
    "layout", [Layout.canonical(), Layout.interleaved(), *map(Layout.chunked, (32, 33))], ids=str
)
def test_last_matrices_of_a_batch_past_32_bits(layout: Layout) -> None:
    spec = warp_spec(2, matrices=4, layout=layout.kind, order=layout.order, in_place=True)
    check_last_matrices_past_32_bits(spec, layout)


# ---- The shape of a team ----


@pytest.mark.parametrize("n", range(1, 129))
def test_tiles_of_all_warps_cover_the_triangle_once(n: int) -> None:
    for warps in (1, 2):
        shape = WarpShape(n, 1, warps, 1)
        tiles = [tile for warp in range(warps) for tile in shape.tiles(warp)]
        places = {(tile.block, tile.column) for tile in tiles}
        assert len(places) == len(tiles)
        assert places == {(i // 16, j // 8) for i in range(16 * shape.blocks) for j in range(min(i + 1, n))} | {
            (block, column) for block, column in places if column == 2 * block + 1
        }
        most, least = (worst(len(shape.tiles(warp)) for warp in range(warps)) for worst in (max, min))
        assert most - least <= 2 * shape.blocks or warps == 1


@pytest.mark.parametrize("n", range(1, 129))
def test_rows_of_the_stage_do_not_overlap(n: int) -> None:
    """Whole groups of eight rows, as long as the longest of each; and eight of them are in different banks."""
    shape = WarpShape(n, 1, 1, 1)
    places: list[int] = []
    for group in range(shape.side):
        starts = [shape.group(group) + row * shape.line for row in range(8)]
        places += [start + column for start in starts for column in range(8 * group + 8)]
        assert len({start // 4 % 8 for start in starts}) == 8
    assert len(set(places)) == len(places)
    assert max(places) < shape.stage


@pytest.mark.parametrize(("matrices", "warps", "n"), [(4, 1, 40), (2, 1, 64), (1, 1, 96), (1, 2, 128)])
def test_largest_orders_that_registers_hold(matrices: int, warps: int, n: int) -> None:
    warp_spec(n, matrices=matrices, warps=warps, teams=1)
    if n < 128:
        field = "matrices" if matrices > 1 else "warps"
        with pytest.raises(SpecError, match=rf"^{field}=.*n={n + 8} is \d+ registers of each thread, over 176; use"):
            warp_spec(n + 8, matrices=matrices, warps=warps, teams=1)


# ---- One line changed ----

# Four columns of tiles, a corner, and two slots of rows; plain reads of the panel, and those of tensor cores.
FMA = warp_spec(27, matrices=2, teams=1, update="fma", layout="canonical", order="row")
TENSOR = warp_spec(27, teams=1, math="fast", layout="canonical", order="row")
SEVERAL = warp_spec(27, warps=2, teams=1, update="fma", layout="canonical", order="row")
CHANGED = {
    "no products of tails and heads": (TENSOR, r"multiply_add\(c\[\d+\], l\[\d\], b\d\);", "", 0),
    "no products of heads and tails": (TENSOR, r"\{ -l\[\d\]\[\d\], -l\[\d\]\[\d\] \}", "{}", 0),
    "no products of heads": (TENSOR, r"multiply_add\(c\[\d+\], h\[\d\], b\d\);", "", 0),
    "one product less": (TENSOR, r"multiply_add\(c\[\d+\], h\[1\], b\d\);", "", 1),
    "heads of all bits": (TENSOR, r"& 0xffffe000u", "", 0),
    "no tails": (TENSOR, r"return x - head\(x\);", "return 0 * x;", 0),
    "another row of a lane": (TENSOR, r"lane % 2 \* 4 \+ lane / 2 % 4", "lane % 8", 0),
    "a column that nothing is taken from": (TENSOR, r"case 2:", "case 20:", 1),
    "a sum of products": (FMA, r"subtract_products\(c\[1\].*\n", "", 1),
    "a multiply-add of products": (FMA, r"c\[2\] -= .*\n", "", 1),
    "a multiply-add of a solution": (FMA, r"x\[j\] -= x\[p\] \* tile.d\[j\]\[p\];", ";", 1),
    "a scaling of a solution": (FMA, r"x\[p\] \*= tile.reciprocal\[p\];", "", 1),
    "a multiply-add of a factorization": (FMA, r"tile.d\[i\]\[j\] -= .*;", ";", 1),
    "a row handed to the tiles": (FMA, r"write_row\(rows, x\[slot\], places\[slot\]\);", "{}", 1),
    "a tile handed to the rows": (FMA, r"write_blocks\(next .*\n", "", 1),
    "a step": (FMA, r"case 2:", "case 20:", 1),
}


@pytest.mark.parametrize("change", CHANGED)
def test_the_source_with_a_line_changed_fails(change: str) -> None:
    spec, pattern, replacement, count = CHANGED[change]
    kernel = mutated(spec, pattern, replacement, count)
    for name, make in DATA.items():
        a = make(3, spec.problem.n).astype(np.float32)
        try:
            run = run_kernel(spec, a, kernel=kernel)
        except EmulationError:
            continue
        assert run.info.any() or ratios(a, run.l).max() > RATIO_BOUND["fast"], name


BARRIERS = [
    (spec, place)
    for spec, barrier in ((FMA, "__syncwarp"), (SEVERAL, "__syncthreads"))
    for place in range(generate(spec).text.count(f"{barrier}();"))
]


@pytest.mark.parametrize(("spec", "place"), BARRIERS, ids=lambda value: getattr(value, "name", str(value)))
def test_every_barrier_is_needed(spec: KernelSpec, place: int) -> None:
    kernel = mutated(spec, r"__sync(warp|threads)\(\);", "", place=place)
    with pytest.raises(EmulationError, match=r"depends on the order|not all threads reach|missing from"):
        run_kernel(spec, dominant(3, spec.problem.n).astype(np.float32), kernel=kernel)


def test_blocks_are_written_without_an_instruction_for_it_as_well() -> None:
    """As compute capability 8 does it, which the emulation does not choose by itself."""
    spec = replace(TENSOR, layout="chunked", order="col")
    own = re.search(r"#else\n(#pragma unroll\n    for \(int b = 0.*?\n    }\n)#endif", generate(spec).text, re.DOTALL)
    assert own
    kernel = mutated(spec, re.escape("{ __write_blocks(row, f); }"), f"\n{{\n{own[1]}}}")
    check_kernel(spec, 3, kernel=kernel)


def test_copies_are_waited_for() -> None:
    kernel = mutated(TENSOR, r"\n    wait_for_fetched\(\);", "")
    with pytest.raises(EmulationError, match="while copies of its own were under way"):
        run_kernel(TENSOR, dominant(3, 27).astype(np.float32), kernel=kernel)
