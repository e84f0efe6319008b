"""How the strip family spreads tiles over warps and shared memory."""

from __future__ import annotations

import re

import pytest

from kernelgen import KernelSpec, Problem, StripSchedule, generate
from kernelgen.gpu import MAX_BLOCK_THREADS, MAX_SHARED_BYTES
from kernelgen.schedules.strip import FACTOR_PIECES, GROUP, HALF, TILE, TILE_PIECES, StripShape

ORDERS = [*range(1, 129, 9), 16, 17, 32, 33, 112, 113, 128]


@pytest.mark.parametrize("n", ORDERS)
def test_tiles_are_numbered_strip_by_strip(n: int) -> None:
    shape = StripShape(n, 32, 0)
    assert TILE * (shape.side - 1) < n <= TILE * shape.side == n + shape.pad
    tiles = [(strip, row) for strip in range(shape.side) for row in range(strip, shape.side)]
    assert shape.tiles == len(tiles)
    assert [tiles[shape.first_tile(strip)] for strip in range(shape.side)] == [(k, k) for k in range(shape.side)]


@pytest.mark.parametrize("n", ORDERS)
def test_only_a_half_that_is_all_padding_is_left_out(n: int) -> None:
    assert StripShape(n, 32, 0).halved == (0 < n % TILE <= HALF)


@pytest.mark.parametrize("n", ORDERS)
def test_each_strip_has_a_warp_and_each_warp_a_tile_of_every_second_group(n: int) -> None:
    for warps in range(-(-n // TILE), 33):
        shape = StripShape(n, warps, 0)
        each = shape.strip_warps
        assert all(1 <= own <= 2 * (shape.side - strip) for strip, own in enumerate(each))
        assert sum(each) == min(warps, 2 * shape.tiles) == shape.first_warps[-1]
        assert shape.first_warps == tuple(sum(each[:strip]) for strip in range(shape.side + 1))
        assert shape.threads == 32 * sum(each) <= MAX_BLOCK_THREADS


@pytest.mark.parametrize(
    ("n", "warps", "strips"),
    [
        (16, 5, (2,)),
        (33, 6, (2, 2, 2)),
        (33, 5, (2, 2, 1)),
        (33, 4, (1, 2, 1)),
        (33, 3, (1, 1, 1)),
        (80, 20, (4, 5, 5, 4, 2)),
        (88, 24, (4, 5, 5, 4, 4, 2)),
        (96, 24, (4, 5, 5, 4, 4, 2)),
        (112, 24, (3, 4, 4, 4, 4, 3, 2)),
        (120, 24, (2, 3, 4, 4, 4, 3, 2, 2)),
        (128, 8, (1,) * 8),
        (128, 24, (3, 3, 4, 4, 3, 3, 2, 2)),
    ],
)
def test_warps_are_where_the_work_is(n: int, warps: int, strips: tuple[int, ...]) -> None:
    """The first strips have more tiles, the last ones' have more updates."""
    assert StripShape(n, warps, 0).strip_warps == strips


def test_tiles_are_handed_over_by_halves_if_one_is_left_out() -> None:
    halved, whole = StripShape(40, 6, 1), StripShape(41, 6, 1)
    assert (halved.parts, whole.parts) == (2, 1)
    assert (halved.turn_barriers, whole.turn_barriers) == (2 * 6 + 3 * 3, 6 + 3 * 3)


def test_shared_memory_of_a_block() -> None:
    shape = StripShape(48, 6, 1)
    assert (shape.side, shape.tiles, shape.places) == (3, 6, 9)
    assert (shape.turn_barriers, shape.barriers) == (15, 60)
    assert shape.panel_pieces == 9 * TILE_PIECES + 4 * FACTOR_PIECES
    assert shape.shared_bytes == (9 * 260 + 4 * 68) * 16 + 60 * 8
    one_place = StripShape(48, 6, 0)
    assert (one_place.places, one_place.barriers) == (6, 60)
    assert one_place.shared_bytes == (6 * 260 + 3 * 68) * 16 + 60 * 8


def test_matrices_of_a_group_begin_at_other_banks() -> None:
    for pieces in (TILE_PIECES, FACTOR_PIECES):
        assert len({pieces // GROUP * m % 8 for m in range(GROUP)}) == GROUP


def test_the_largest_matrices_have_a_place_and_some_a_second_one() -> None:
    assert StripShape(128, 32, 0).shared_bytes <= MAX_SHARED_BYTES < StripShape(128, 32, 7).shared_bytes
    assert StripShape(128, 32, 2).shared_bytes <= MAX_SHARED_BYTES


@pytest.mark.parametrize(("n", "warps", "ahead"), [(1, 1, 0), (20, 2, 1), (128, 20, 2)])
def test_a_kernel_is_launched_as_its_shape_says(n: int, warps: int, ahead: int) -> None:
    spec = KernelSpec(
        Problem(n, math="fast"), "chunked", "col", StripSchedule(warps, ahead, stride=4, blocks=2), "cuda"
    )
    source, shape = generate(spec), StripShape(n, warps, ahead)
    assert source.launch is not None
    assert (source.launch.threads, source.launch.items, source.launch.resident) == (shape.threads, GROUP, 2)
    assert source.launch.shared_bytes == shape.shared_bytes
    assert re.findall(r".*__shared__.*", source.text) == ["extern __shared__ Piece panel[];"]


@pytest.mark.parametrize(("n", "warps"), [(16, 1), (50, 7), (128, 20), (128, 32)])
def test_a_kernel_knows_the_warps_of_its_strips(n: int, warps: int) -> None:
    """As the bytes of two numbers."""
    shape = StripShape(n, warps, 0)
    text = generate(
        KernelSpec(Problem(n, math="fast"), "chunked", "col", StripSchedule(warps, stride=4), "cuda")
    ).text
    for name, expected in (("first_warp", shape.first_warps[:-1]), ("warps_of", shape.strip_warps)):
        number = re.search(rf"INLINE int {name}\(.*\(int\)\((0x[0-9a-f]+)ull >> 8 \* strip & 255\)", text)
        assert number
        assert tuple(int(number[1], 16).to_bytes(8, "little"))[: shape.side] == expected
