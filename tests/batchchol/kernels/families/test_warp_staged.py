"""Warps that read and write whole arrays by way of shared memory, emulated."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from kernelgen import KernelSpec, SpecError
from kernelgen.schedules.stages.warp import CoveredRows, WarpImage

from ....emulation.checks import CompiledTogether, check_arrays_that_begin_anywhere, check_kernel
from ....kernel_runs import make_spec, run_kernel
from ....matrices import dominant

staged = partial(make_spec, family="warp", target="cuda", layout="canonical", staged=True)

CASES = [
    staged(1, order="row", matrices=4),
    staged(9, order="row", matrices=4, teams=4, in_place=True),
    staged(13, order="col", math="fast", matrices=2),
    staged(18, order="row", teams=8, update="tensor", unroll="full"),
    staged(36, order="row", uplo="upper", matrices=2, update="tensor"),
    staged(11, order="row", dtype="float64", matrices=2),
    staged(20, order="row", dtype="float64", in_place=True),
    staged(24, order="row", matrices=2, update="tensor", in_place=True),
    staged(12, order="col", teams=4),
    staged(41, order="row", warps=2, teams=1),
    staged(36, order="row", warps=2, teams=1, update="tensor", unroll="full"),
    staged(35, order="row", dtype="float64", warps=4, teams=1),
]
emulated = CompiledTogether(CASES)


@pytest.mark.parametrize("spec", CASES, ids=lambda spec: spec.name)
def test_factors_are_right(spec: KernelSpec) -> None:
    check_kernel(spec, 7, None, emulated(spec))


@pytest.mark.parametrize("spec", [*CASES[1:3], *CASES[5:8], CASES[9]], ids=lambda spec: spec.name)
def test_arrays_begin_anywhere(spec: KernelSpec) -> None:
    check_arrays_that_begin_anywhere(spec)


def test_failing_members_harm_no_neighbour() -> None:
    spec = CASES[1]
    a = dominant(11, 9).astype(np.float32)
    good = run_kernel(spec, a, kernel=emulated(spec)).l
    a[::3, 2, 2], a[1::3, 8, 8] = np.nan, -1
    run = run_kernel(spec, a, kernel=emulated(spec))
    assert run.info.tolist() == [3, 9, 0] * 3 + [3, 9]
    assert np.array_equal(run.l[2::3], good[2::3])


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize(("n", "matrices", "dtype"), [(7, 4, "float32"), (40, 1, "float32"), (13, 2, "float64")])
@pytest.mark.parametrize("warps", [1, 4])
def test_every_element_of_the_triangle_is_wanted(
    n: int, matrices: int, dtype: str, warps: int, by_rows: bool
) -> None:
    """Wherever the matrices begin in a piece, if not with one; and of large matrices some are not."""
    image = WarpImage(n, matrices, dtype, warps)
    lanes = [lanes for turn in range(image.turns) for lanes in image.wanted(turn, by_rows=by_rows)]
    inside = np.tril(np.ones((n, n), bool)) if by_rows else np.triu(np.ones((n, n), bool))
    places = np.flatnonzero(np.tile(inside.ravel(), matrices))
    for shift in range(1 if image.lined else image.piece):
        for piece in {int(place + shift) // image.piece for place in places}:
            assert lanes[piece // 32] >> piece % 32 & 1
    assert sum(lane.bit_count() for lane in lanes) < image.pieces or n < 8


@pytest.mark.parametrize("choices", [{"resident": True}, {"layout": "chunked"}, {"op": "posv"}], ids=str)
def test_others_have_no_image(choices: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"^staged=True .*teams that factor arrays"):
        staged(9, **choices)


def test_an_image_that_is_too_large_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^teams=8 .*n=90 is [\d,]+ bytes of shared memory, over"):
        staged(90, teams=8)


@pytest.mark.parametrize("n", range(17, 129))
def test_rows_that_come_by_pieces_do_not_overlap_wherever_they_begin(n: int) -> None:
    """Each begins in a piece of the stage where it does so in one of memory, and has room for all of its pieces."""
    covered = CoveredRows(n)
    for shift in range(4):
        places: list[int] = []
        for i in range(8 * covered.side):
            start = shift + i % 8 * covered.line + covered.group(i // 8)
            assert (start - shift - i * n) % 4 == 0
            places += range(start // 4, start // 4 + covered.pieces(i // 8))
            assert 4 * covered.pieces(i // 8) >= start % 4 + i + 1
        assert len(set(places)) == len(places)
        assert 4 * max(places) + 4 <= covered.scalars
