"""The strip family with one line changed, emulated: what each wait, each arrival and each product is for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSpec, generate
from kernelgen.schedules.strip import GROUP

from ....emulation.checks import in_every_order, mutated, run_or_error
from ....emulation.kernels import EmulatedKernel
from ....kernel_runs import Run
from ....matrices import DATA, wishart
from .test_strip import run, strip_spec

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
# Tiles make room one by one.
SINGLY = strip_spec(60, warps=10, singly=True)
UNEVEN_SINGLY = strip_spec(61, warps=10, singly=True)
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
    "waiting for a used tile": (SINGLY, r"wait_for_room\(strip, row, round\);"),
    "arriving at a tile on the left": (SINGLY, r"arrive\(barriers_of\(round\) \+ EMPTY .*row : strip\)\);"),
    "arriving at one of two": (SINGLY, r"if \(own_lane\(\) < \(row == strip \? 1 : 2\)\)", "if (own_lane() == 0)"),
    "a tile below arriving at the diagonal one": (
        SINGLY,
        r"arrive\(barriers_of\(round\) \+ room_of\(strip, strip\)\);",
    ),
    "a tile arriving at the one above": (
        UNEVEN_SINGLY,
        r"arrive\(barriers_of\(round\) \+ room_of\(strip, row - 1\)\);",
    ),
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


def assert_fails_or_is_wrong(spec: KernelSpec, kernel: EmulatedKernel) -> None:
    """In whatever order threads run, far apart within warps as well."""
    for name, make in DATA.items():
        a = make(MUTATED_BATCH, spec.problem.n).astype(np.float32)
        outcome = run_or_error(spec, kernel.source, a)
        if not isinstance(outcome, Run):
            assert re.search("depends on the order|waits at|was not set up|under way|not all threads", outcome)
            # Which thread waits for which does not depend on the data.
            return
        assert outcome.info.any() or not ratios(a, outcome.l).max() <= RATIO_BOUND["fast"], name


@pytest.mark.parametrize("line", DROPPED)
def test_every_line_is_needed(line: str) -> None:
    spec, pattern, *replacement = DROPPED[line]
    kernel = mutated(spec, rf"(?<=\n)(?P<indent> +){pattern}", f"    {''.join(replacement) or '{}'}")
    assert_fails_or_is_wrong(spec, kernel)


def test_groups_need_barriers_by_turns() -> None:
    assert_fails_or_is_wrong(CROWDED, mutated(CROWDED, r"TURNS = 4", "TURNS = 1"))


@pytest.mark.parametrize(
    "spec",
    [MUTATED, ONE_PLACE, HALVED, UNEVEN, UNEVEN_HALVED, CROWDED, SINGLY, UNEVEN_SINGLY],
    ids=lambda spec: spec.name,
)
def test_unchanged_it_does_not_depend_on_the_order_of_threads(spec: KernelSpec) -> None:
    a = wishart(MUTATED_BATCH, spec.problem.n).astype(np.float32)
    some = in_every_order(spec, generate(spec), a)
    assert not some.info.any()
    assert ratios(a, some.l).max() <= RATIO_BOUND["fast"]


# All but the product of both tails of `update_half`, which is as small as what the others round.
PRODUCTS = {
    "of tails on the left": (r"product = 0; product < 3", "product = 1; product < 3"),
    "of tails on the right": (r"product == 1 \? t\[m\]", "product == 3 ? t[m]"),
    "of a half's heads alone": (r"product = 1; product < 4", "product = 3; product < 4"),
    "of a half's tails on the right": (r"product = 1; product < 4", "product = 2; product < 4"),
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
