"""The block family, emulated: every parameter value and order, wide and narrow accesses, what each line is for."""

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
from kernelgen.gpu import BANKS_BYTES, PIECE_BYTES
from kernelgen.schedules.block import BlockShape

from ....covering import Choice, covering_design
from ....emulation import checks as cuda_checks
from ....emulation.checks import (
    CompiledTogether,
    check_arrays_that_begin_anywhere,
    check_kernel,
    check_last_matrices_past_32_bits,
)
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import EmulationError
from ....kernel_runs import make_spec, run_kernel
from ....matrices import DATA, dominant, wishart

FACTORS: Mapping[str, Sequence[Any]] = {
    "n": (1, 8, 17, 33, 128),
    "nb": (4, 5, 6, 7, 8, 9),
    "lanes": (1, 2, 4, 8, 16, 32),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 2, 3, 8, 33),
    "in_place": (False, True),
    "math": ("ieee", "fast"),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "blocks": (None, 2),
    "cache": ("l1", "shared"),
    # Whether the chunk is a constant of the code, where there is a chunk.
    "constant_chunk": (False, True),
    "batch": (1, 5, 33),
}
CONSTRAINED = ("n", "nb", "lanes", "batch")
# What a case costs besides its lines of code, and turns of threads at barriers that cost as much as a line.
CASE_COST, TURNS_OF_A_LINE = 500, 100


def cost_of(choice: Choice) -> float:
    """What a choice costs, in lines of code; infinite for what is refused."""
    shape = BlockShape(choice["n"], choice["nb"], choice["lanes"], "float64")
    try:
        lines = lines_of(choice["nb"], choice["n"], choice["lanes"])
    except SpecError:
        return inf
    turns = -(-choice["batch"] // shape.lanes) * shape.threads * 2 * shape.side
    return float(lines + turns / TURNS_OF_A_LINE + CASE_COST)


@cache
def lines_of(nb: int, n: int, lanes: int) -> int:
    spec = make_spec(n, nb, family="block", lanes=lanes, dtype="float64", target="cuda")
    return generate(spec).text.count("\n")


DESIGN = sorted(
    covering_design(FACTORS, CONSTRAINED, cost_of), key=lambda choice: (choice["math"], choice["dtype"], choice["nb"])
)


spec_of = partial(cuda_checks.spec_of, family="block")
case_id = partial(cuda_checks.case_id, family="block")

# Every order to 33, and those at which larger ones have one tile more or less; padded by every number of rows.
EVERY_ORDER = [
    make_spec(n, max(4, min(n, nb)), family="block", lanes=lanes, layout=layout, target="cuda")
    for n, nb, lanes, layout in zip(
        (*range(1, 34), 40, 47, 48, 63, 64, 96, 100, 127),
        cycle((4, 8, 6, 5, 8, 7, 4)),
        cycle((4, 2, 1)),
        cycle(("canonical", "chunked", "canonical", "interleaved")),
        strict=False,
    )
]


emulated = CompiledTogether((spec_of(choice)[0] for choice in DESIGN), EVERY_ORDER)


@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    check_kernel(spec, choice["batch"], chunk, emulated(spec))


@pytest.mark.parametrize("spec", EVERY_ORDER, ids=lambda spec: spec.name)
def test_every_order(spec: KernelSpec) -> None:
    check_kernel(spec, 5, 3, emulated(spec))


# Large tiles have long code. Of the sizes from 10 to 16: one whose last piece has three rows, two of whole pieces.
@pytest.mark.parametrize("nb", [11, 12, 16])
def test_other_tile_sizes(nb: int) -> None:
    check_kernel(make_spec(2 * nb + 3, nb, family="block", lanes=4, target="cuda"), 5)


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
def test_ragged_batches_with_failing_members(layout: str) -> None:
    spec = make_spec(6, 4, family="block", lanes=8, layout=layout, target="cuda")
    a = dominant(20, 6).astype(np.float32)
    a[::3, 2, 2] = np.nan
    a[1::6, 5, 5] = -1
    expected = np.where(np.arange(20) % 3 == 0, 3, np.where(np.arange(20) % 6 == 1, 6, 0))
    whole = run_kernel(spec, a, 3 if layout == "chunked" else None).l
    for batch in range(1, 21):
        run = run_kernel(spec, a[:batch])
        assert np.array_equal(run.info, expected[:batch])
        good = run.info == 0
        assert np.array_equal(np.tril(run.l[good]), np.tril(whole[:batch][good]))


@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_an_infinite_pivot_is_good_as_in_lapack(math: str) -> None:
    """In a matrix of which the first tile has padding."""
    a = dominant(5, 6).astype(np.float32)
    a[:, 2, 2] = np.inf
    run = run_kernel(make_spec(6, 4, family="block", lanes=4, math=math, target="cuda"), a)
    assert not run.info.any()
    assert np.isinf(run.l[:, 2, 2]).all()


def test_same_bits_for_every_layout_chunk_and_number_of_lanes() -> None:
    a = wishart(37, 17).astype(np.float32)
    lower = np.tril(run_kernel(make_spec(17, 8, family="block", lanes=1, target="cuda"), a).l)
    for lanes in (2, 8, 32):
        spec = make_spec(17, 8, family="block", lanes=lanes, target="cuda")
        for chunk in (2, 3, 8, 33):
            assert np.tril(run_kernel(spec, a, chunk).l).tobytes() == lower.tobytes(), (lanes, chunk)
        canonical = make_spec(17, 8, family="block", lanes=lanes, layout="canonical", target="cuda")
        assert np.tril(run_kernel(canonical, a).l).tobytes() == lower.tobytes(), lanes


# ---- Canonical arrays: whole pieces where they lie ----


@pytest.mark.parametrize(
    ("n", "nb", "dtype", "wide"),
    [
        (16, 8, "float32", True),
        (20, 8, "float32", True),
        (16, 6, "float32", False),
        (18, 8, "float32", False),
        (18, 6, "float64", True),
        (17, 4, "float64", False),
    ],
)
def test_pieces_where_matrices_and_tiles_are_made_of_them(n: int, nb: int, dtype: str, wide: bool) -> None:
    canonical = make_spec(n, nb, family="block", lanes=2, dtype=dtype, layout="canonical", target="cuda")
    assert ("read_pieces" in generate(canonical).text) == wide
    chunked = make_spec(n, nb, family="block", lanes=2, dtype=dtype, target="cuda")
    assert "read_pieces" not in generate(chunked).text


@pytest.mark.parametrize(("in_place", "order"), [(False, "row"), (True, "col")])
def test_canonical_arrays_that_begin_anywhere(in_place: bool, order: str) -> None:
    choices = {"layout": "canonical", "order": order, "in_place": in_place}
    check_arrays_that_begin_anywhere(make_spec(12, 4, family="block", lanes=2, target="cuda", **choices), batch=5)


@pytest.mark.parametrize(
    "layout", [Layout.canonical(), Layout.interleaved(), *map(Layout.chunked, (32, 33))], ids=str
)
def test_last_matrices_of_a_batch_past_32_bits(layout: Layout) -> None:
    choices = {"layout": layout.kind, "order": layout.order, "in_place": True}
    spec = make_spec(2, 4, family="block", lanes=4, target="cuda", **choices)
    check_last_matrices_past_32_bits(spec, layout)


# ---- The shape of a block ----


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("nb", range(4, 17))
def test_neighbouring_threads_read_different_banks(nb: int, lanes: int, dtype: str) -> None:
    """Those that are served together: the same piece of every lane of a tile, and of the tiles below it."""
    shape = BlockShape(3 * nb, nb, lanes, dtype)
    together = range(BANKS_BYTES // PIECE_BYTES)
    pieces = [thread // lanes * shape.tile_pieces * lanes + thread % lanes for thread in together]
    assert len({piece % len(together) for piece in pieces}) == len(together)
    assert shape.tile_pieces >= nb * shape.pieces


def test_tiles_threads_and_shared_memory_of_a_block() -> None:
    shape = BlockShape(100, 8, 4, "float32")
    assert (shape.side, shape.pad, shape.tiles, shape.threads) == (13, 4, 91, 384)
    assert (shape.width, shape.pieces, shape.tile_pieces) == (4, 2, 17)
    assert shape.shared_bytes == 13 * 17 * 4 * 16 + 4 * 4
    launched = generate(make_spec(100, 8, family="block", lanes=4, target="cuda")).launch
    assert launched is not None
    assert (launched.threads, launched.items, launched.shared_bytes) == (384, 4, shape.shared_bytes)


@pytest.mark.parametrize(
    ("n", "nb", "leaves_out"),
    [
        (57, 8, True),
        (60, 8, True),
        (61, 8, False),
        (64, 8, False),
        (68, 7, False),
        (67, 7, True),
        (41, 9, True),
        (12, 4, False),
    ],
)
def test_padding_is_left_out_of_updates_where_it_is_half_a_tile_or_nearly(n: int, nb: int, leaves_out: bool) -> None:
    assert BlockShape(n, nb, 4, "float32").skips_padding is leaves_out
    text = generate(make_spec(n, nb, family="block", lanes=4, target="cuda")).text
    assert ("update_by_first" in text) is leaves_out


@pytest.mark.parametrize(
    ("nb", "dtype", "tails", "pieces", "tile_pieces"),
    [
        (8, "float32", 0, 2, 17),
        (7, "float32", 0, 2, 15),
        (9, "float32", 1, 2, 21),
        (10, "float32", 2, 2, 25),
        (6, "float32", 2, 1, 9),
        (7, "float64", 1, 3, 25),
        (8, "float64", 0, 4, 33),
    ],
)
def test_tails_of_columns_share_pieces(nb: int, dtype: str, tails: int, pieces: int, tile_pieces: int) -> None:
    """A ninth row is one piece to four columns, not one to each."""
    shape = BlockShape(3 * nb, nb, 16, dtype)
    assert (shape.tails, shape.pieces, BlockShape(3 * nb, nb, 4, dtype).tile_pieces) == (tails, pieces, tile_pieces)


def test_all_shared_memory_is_announced() -> None:
    """Past 48 KiB, static variables included, a launch fails unless the whole was asked for."""
    source = generate(make_spec(48, 8, family="block", lanes=32, target="cuda"))
    assert source.launch is not None
    assert source.launch.shared_bytes == (48 << 10) + 4 * 32
    assert re.findall(r".*__shared__.*", source.text) == ["extern __shared__ Piece panel[];"]


@pytest.mark.parametrize(
    ("n", "nb", "lanes", "dtype", "reason"),
    [
        (128, 4, 2, "float32", "1,056 threads, over the 1,024"),
        (128, 16, 16, "float64", "262,208 bytes of shared memory, over the 232,448"),
    ],
)
def test_refused_are_blocks_that_do_not_exist(n: int, nb: int, lanes: int, dtype: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason.replace("(", r"\(")):
        make_spec(n, nb, family="block", lanes=lanes, dtype=dtype, target="cuda")


def test_only_a_block_of_several_warps_needs_the_barrier_of_blocks() -> None:
    one_warp = generate(make_spec(16, 8, family="block", lanes=8, target="cuda")).text
    several = generate(make_spec(16, 8, family="block", lanes=16, target="cuda")).text
    assert ("__syncwarp();" in one_warp, "__syncthreads();" in one_warp) == (True, False)
    assert ("__syncwarp();" in several, "__syncthreads();" in several) == (False, True)


# ---- One line changed ----

# Four rows of tiles, the first of which is padded; several warps.
MUTATED = make_spec(15, 4, family="block", lanes=4, layout="interleaved", target="cuda")
DROPPED = {
    "a multiply-add of an update": ("update", r"C\(1, 2\) -= a1 \* b2;"),
    "a multiply-add of a solution": ("solve", r"C\(0, 2\) -= C\(0, 1\) \* t;"),
    "a scaling of a solution": ("solve", r"C\(1, 3\) \*= RECIPROCAL\(3\);"),
    "a multiply-add of a factorization": ("factor", r"C\(2, 1\) -= C\(2, 0\) \* C\(1, 0\);"),
    "a scaling of a factorization": ("factor", r"C\(3, 1\) \*= RECIPROCAL\(1\);"),
    "a pivot": ("factor", r"C\(1, 1\) = pivot\(C\(1, 1\), &RECIPROCAL\(1\)\);"),
    "a reciprocal": ("factor", r"c\[1\]\[1\] = d\[1\];"),
    "a call of an update": (MUTATED.name, r"update\(.*\);"),
    "a call of a solution": (MUTATED.name, r"solve\(.*\);"),
}


def mutated(
    function: str, pattern: str, replacement: str, place: int = 0, spec: KernelSpec = MUTATED
) -> EmulatedKernel:
    """The kernel with one match of a pattern in a function replaced."""
    source = generate(spec)
    begin = re.search(rf"^(INLINE|extern) .*\b{function}\(", source.text, re.MULTILINE)
    assert begin, f"there is no function {function}"
    end = source.text.index("\n}\n", begin.end())
    match = list(re.finditer(pattern, source.text[begin.end() : end]))[place]
    start, stop = begin.end() + match.start(), begin.end() + match.end()
    text = source.text[:start] + replacement + source.text[stop:]
    return EmulatedKernel.of(spec, replace(source, text=text))


@pytest.mark.parametrize("line", DROPPED)
def test_the_source_with_one_line_dropped_fails(line: str) -> None:
    kernel = mutated(*DROPPED[line], "{}")
    for name, make in DATA.items():
        a = make(5, 15).astype(np.float32)
        run = run_kernel(MUTATED, a, kernel=kernel)
        assert run.info.any() or ratios(a, run.l).max() > RATIO_BOUND["fast"], name


def test_what_is_left_out_of_updates_is_padding_and_no_more() -> None:
    """By whole updates the factors are the same, bit for bit; a column less is missed."""
    spec = make_spec(13, 4, family="block", lanes=4, layout="interleaved", target="cuda")
    a = dominant(5, 13).astype(np.float32)
    run = run_kernel(spec, a, kernel=EmulatedKernel.of(spec))
    whole = run_kernel(spec, a, kernel=mutated(spec.name, "update_by_first", "update", spec=spec))
    np.testing.assert_array_equal(np.tril(run.l), np.tril(whole.l))
    less = run_kernel(spec, a, kernel=mutated("update_by_first", "p = PAD", "p = PAD + 1", spec=spec))
    assert ratios(a, less.l).max() > RATIO_BOUND["ieee"]


@pytest.mark.parametrize("place", [0, 1])
def test_every_barrier_is_needed(place: int) -> None:
    kernel = mutated(MUTATED.name, r"__syncthreads\(\);", "", place)
    with pytest.raises(EmulationError, match="depends on the order"):
        run_kernel(MUTATED, dominant(5, 15).astype(np.float32), kernel=kernel)
