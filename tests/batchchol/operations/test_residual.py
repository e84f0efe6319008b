"""The residual check: right factors pass it, and whatever is wrong with a factor, it fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from batchchol import Batch
from batchchol.errors import ResidualError
from batchchol.operations.residual import RATIO_BOUND, check, ratios
from kernelgen import Layout
from kernelgen.programs.potrf import tile_program
from kernelgen.programs.tiles import Load, Store, TileOp, expand

from ...interpreter import Machine, fused, interpret
from ...matrices import DATA, dominant, lapack_factor, wishart

Array = np.typing.NDArray[np.floating]
LAYOUTS = [Layout.canonical(), Layout.chunked(16), Layout.interleaved("row")]
LOOKINGS = ("right", "left", "top")
every_data = pytest.mark.parametrize("make", DATA.values(), ids=DATA.keys())


def by_hand(a: Array, l: Array) -> float:
    """The definition, one element after another."""
    n, worst = len(a), 0.0
    for i in range(n):
        for j in range(i + 1):
            product = sum(float(l[i, p]) * float(l[j, p]) for p in range(j + 1))
            magnitude = sum(abs(float(l[i, p]) * float(l[j, p])) for p in range(j + 1))
            worst = max(worst, abs(float(a[i, j]) - product) / ((n + 1) * 2.0**-24 * magnitude))
    return worst


def test_ratio_is_its_definition() -> None:
    a = wishart(4, 6).astype(np.float32)
    l = lapack_factor(a)[0]
    l[1, 4, 2] *= 1.001
    np.testing.assert_allclose(ratios(a, l), [by_hand(*pair) for pair in zip(a, l, strict=True)], rtol=1e-6)


def test_unit_roundoff_is_the_factors_unless_another_is_named() -> None:
    a = wishart(3, 5)
    rounded = lapack_factor(a)[0].astype(np.float32).astype(np.float64)
    assert (ratios(a, rounded) > 1e6).all()
    assert (ratios(a, rounded, "float32") < 1).all()
    assert np.array_equal(ratios(a, rounded, "float32"), ratios(a, rounded.astype(np.float32)))


def test_upper_triangles_are_not_read() -> None:
    a = dominant(3, 5).astype(np.float32)
    l = lapack_factor(a)[0]
    rows, columns = np.triu_indices(5, 1)
    dirty_a, dirty_l = a.copy(), l.copy()
    dirty_a[:, rows, columns] = dirty_l[:, rows, columns] = np.nan
    assert np.array_equal(ratios(dirty_a, dirty_l), ratios(a, l))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_factors_that_are_not_finite_are_infinitely_wrong(value: float) -> None:
    a = dominant(3, 5)
    l = lapack_factor(a)[0]
    l[1, 3, 2] = value
    assert np.array_equal(np.isinf(ratios(a, l)), [False, True, False])


@pytest.mark.parametrize("columns", [slice(0, 1), slice(4, 5), slice(0, 5)])
def test_columns_of_the_wrong_sign_are_infinitely_wrong(columns: slice) -> None:
    """Though their product is right."""
    a = dominant(3, 5)
    l = lapack_factor(a)[0]
    l[2, :, columns] *= -1
    assert np.array_equal(np.isinf(ratios(a, l)), [False, False, True])


def test_zeros_agree_with_zeros() -> None:
    """An element that is zero in A and in the product divides nothing by nothing."""
    diagonal = np.eye(6, dtype=np.float32)[np.newaxis] * 4
    assert ratios(diagonal, diagonal / 2) == 0
    assert ratios(diagonal + np.eye(6, k=-1, dtype=np.float32), diagonal / 2) == np.inf


def test_many_matrices_are_taken_in_slices() -> None:
    a = np.resize(wishart(3, 64), (1300, 64, 64)).astype(np.float32)
    l = np.resize(lapack_factor(a[:3])[0], a.shape)
    assert np.array_equal(ratios(a, l), np.resize(ratios(a[:3], l[:3]), 1300))
    assert ratios(a[:0], l[:0]).shape == (0,)


@every_data
@pytest.mark.parametrize("n", [5, 33, 100, 128])
def test_single_precision_passes_with_room_to_spare(n: int, make: Callable[[int, int], Array]) -> None:
    a = make(8, n).astype(np.float32)
    assert ratios(a, lapack_factor(a)[0]).max() <= 0.5


@every_data
@pytest.mark.parametrize("looking", LOOKINGS)
def test_interpreted_kernels_pass_with_room_to_spare(looking: str, make: Callable[[int, int], Array]) -> None:
    a = make(8, 33).astype(np.float32)
    assert ratios(a, interpret(a, 5, looking, multiply_subtract=fused).l).max() <= 0.5


def ten_bits(values: Array) -> Array:
    """Rounded to the 10 explicit mantissa bits of TF32."""
    bits = values.astype(np.float32).view(np.uint32)
    nearest = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return (nearest & np.uint32(0xFFFFE000)).view(np.float32)


@every_data
@pytest.mark.parametrize("n", [17, 64, 128])
def test_products_of_ten_bit_factors_fail(n: int, make: Callable[[int, int], Array]) -> None:
    """As on tensor cores in one pass: what enters a product is rounded, the sum is not."""
    a = make(3, n).astype(np.float32)
    rough = interpret(a, 8, "left", multiply_subtract=fused, operand=ten_bits)
    assert not rough.info.any()
    assert ratios(a, rough.l).min() > RATIO_BOUND["fast"]


@every_data
@pytest.mark.parametrize("n", [2, 17, 128])
def test_inputs_of_ten_bits_fail(n: int, make: Callable[[int, int], Array]) -> None:
    a = make(4, n).astype(np.float32)
    assert ratios(a, lapack_factor(ten_bits(a))[0]).min() > RATIO_BOUND["fast"]


def test_rounding_to_ten_bits() -> None:
    given = np.array([1, 1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-12), 1 + 2**-11 + 2**-20], np.float32)
    expected = np.array([1, 1 + 2**-10, 1, 1 + 2**-9, -1, 1 + 2**-10], np.float32)
    assert np.array_equal(ten_bits(given), expected)


def dropped(program: list[TileOp], place: int) -> list[TileOp]:
    return program[:place] + program[place + 1 :]


def doubled(program: list[TileOp], place: int) -> list[TileOp]:
    return program[: place + 1] + program[place:]


def swapped(program: list[TileOp], place: int) -> list[TileOp]:
    first, second = program[place : place + 2]
    return [*program[:place], second, first, *program[place + 2 :]]


MUTATIONS = {"dropped": dropped, "doubled": doubled, "swapped": swapped}


def factor_anyway(program: list[TileOp], a: Array, nb: int, in_place: bool) -> Array:
    return Machine(a, nb, in_place, multiply_subtract=fused, strict=False).run(program).l


def is_harmless(original: Array, mutant: Array) -> bool:
    return np.array_equal(np.tril(original), np.tril(mutant))


@every_data
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("looking", LOOKINGS)
@pytest.mark.parametrize("mutate", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_every_mutant_of_a_program_fails_or_makes_the_same_bits(
    mutate: Callable[[list[TileOp], int], list[TileOp]],
    looking: str,
    in_place: bool,
    make: Callable[[int, int], Array],
) -> None:
    n, nb = 14, 4
    a = make(2, n).astype(np.float32)
    program = list(expand(tile_program(n, nb, looking, in_place=in_place)))
    original = factor_anyway(program, a, nb, in_place)
    assert ratios(a, original).max() <= RATIO_BOUND["ieee"]
    for place in range(len(program) - (mutate is swapped)):
        mutant = factor_anyway(mutate(program, place), a, nb, in_place)
        wrong = ratios(a, mutant).max() > RATIO_BOUND["fast"]
        assert wrong or is_harmless(original, mutant), f"{program[place]} {mutate.__name__}"
        if mutate is dropped and not isinstance(program[place], Load):
            assert wrong, f"without {program[place]} nothing was noticed"
        if mutate is doubled and not isinstance(program[place], Load | Store):
            assert wrong, f"with {program[place]} twice nothing was noticed"


@every_data
def test_one_dropped_operation_of_thousands_is_noticed(make: Callable[[int, int], Array]) -> None:
    """At n = 100 a dropped tile product is one in thousands; a normwise residual would hardly see it."""
    n, nb = 100, 4
    a = make(1, n).astype(np.float32)
    program = list(expand(tile_program(n, nb, "left", in_place=False)))
    working = [place for place, op in enumerate(program) if not isinstance(op, Load | Store)]
    for place in np.random.default_rng(0).choice(working, 3, replace=False):
        mutant = factor_anyway(dropped(program, int(place)), a, nb, False)
        assert ratios(a, mutant).max() > RATIO_BOUND["fast"], program[place]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_check_returns_the_largest_ratio(layout: Layout) -> None:
    a = wishart(40, 7).astype(np.float32)
    l, info = lapack_factor(a)
    given, factors = Batch.from_dense(a, layout), Batch.from_dense(l, layout)
    assert check(given, factors, info, "ieee") == ratios(a, l).max()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("member", [0, 7, 39])
def test_check_names_the_wrong_matrix(layout: Layout, member: int) -> None:
    a = wishart(40, 7).astype(np.float32)
    l, info = lapack_factor(a)
    l[member, 6, 2] *= 1.001
    given, factors = Batch.from_dense(a, layout), Batch.from_dense(l, layout)
    with pytest.raises(
        ResidualError, match=rf"matrix {member} has the residual ratio .*bound of 1.5 for math='ieee'"
    ):
        check(given, factors, info, "ieee")


def test_check_refuses_what_is_not_finite() -> None:
    a = wishart(5, 4).astype(np.float32)
    l, info = lapack_factor(a)
    l[3, 2, 1] = np.nan
    with pytest.raises(ResidualError, match="matrix 3 has the residual ratio inf"):
        check(Batch.from_dense(a), Batch.from_dense(l), info, "fast")


def test_check_of_nothing_finds_nothing() -> None:
    nothing = Batch.empty(3, 0)
    assert check(nothing, nothing, np.empty(0, np.int32), "ieee") == 0


def test_check_refuses_an_info() -> None:
    a = wishart(5, 4).astype(np.float32)
    l, info = lapack_factor(a)
    info[2] = 3
    with pytest.raises(ResidualError, match="matrix 2 has info 3"):
        check(Batch.from_dense(a), Batch.from_dense(l), info, "fast")


def test_check_takes_both_ends_of_a_large_batch() -> None:
    a = wishart(1000, 3).astype(np.float32)
    l, info = lapack_factor(a)
    for member in (0, 999):
        wrong = l.copy()
        wrong[member, 2, 2] = 9
        with pytest.raises(ResidualError, match=f"matrix {member} "):
            check(Batch.from_dense(a), Batch.from_dense(wrong), info, "fast", samples=10)
