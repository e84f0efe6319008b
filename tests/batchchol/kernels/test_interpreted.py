"""Generated code against the interpreter of its tile program: the same operations make the same bits."""

from __future__ import annotations

import platform
from itertools import product

import numpy as np
import pytest

from batchchol.artifacts.c_library import supported_targets

from ...interpreter import Interpretation, MultiplySubtract, fused, interpret, separate
from ...kernel_runs import Array, make_spec, run_kernel
from ...matrices import dominant, wishart

LOOKINGS = ("right", "left", "top")
SHAPES = ((17, 4, "tiles"), (12, 5, "full"), (31, 8, "tiles"))
TARGETS = supported_targets()


def rounding(target: str) -> MultiplySubtract:
    """Whether a target's multiply-adds round once or twice."""
    has_fma = target != "generic" or platform.machine() == "aarch64"
    return fused if has_fma else separate


def assert_same_bits(l: Array, expected: Interpretation) -> None:
    assert np.array_equal(np.tril(l), np.tril(expected.l))


# Every shape in every order, by targets in turn: all run the same operations, on vectors of different lengths.
@pytest.mark.parametrize(
    ("target", "looking", "shape"),
    [
        (TARGETS[turn % len(TARGETS)], looking, SHAPES[(place + turn) % len(SHAPES)])
        for turn, (place, looking) in product(range(len(SHAPES)), enumerate(LOOKINGS))
    ],
)
def test_float32_is_the_interpreters_to_the_last_bit(target: str, looking: str, shape: tuple[int, int, str]) -> None:
    n, nb, unroll = shape
    spec = make_spec(n, nb, looking=looking, unroll=unroll, layout="interleaved", target=target)
    for make in (dominant, wishart):
        a = make(19, n).astype(np.float32)
        expected = interpret(a, nb, looking, multiply_subtract=rounding(target))
        assert_same_bits(run_kernel(spec, a).l, expected)


@pytest.mark.skipif(platform.machine() == "aarch64", reason="NumPy has no fused multiply-add in float64")
@pytest.mark.parametrize("looking", LOOKINGS)
def test_float64_is_the_interpreters_to_the_last_bit(looking: str) -> None:
    spec = make_spec(15, 4, looking=looking, dtype="float64", target="generic")
    a = wishart(9, 15)
    assert_same_bits(run_kernel(spec, a).l, interpret(a, 4, looking))


@pytest.mark.parametrize(
    ("layout", "order", "uplo", "in_place"),
    [
        ("canonical", "row", "lower", False),
        ("canonical", "col", "lower", True),
        ("canonical", "row", "upper", True),
        ("canonical", "col", "upper", False),
        ("chunked", "row", "lower", True),
        ("chunked", "col", "upper", False),
        ("interleaved", "row", "upper", True),
    ],
)
def test_every_place_of_the_data_gives_the_same_bits(layout: str, order: str, uplo: str, in_place: bool) -> None:
    n, nb = 7, 3
    spec = make_spec(n, nb, looking="top", layout=layout, order=order, uplo=uplo, in_place=in_place, target="generic")
    a = wishart(33, n).astype(np.float32)
    expected = interpret(a, nb, "top", multiply_subtract=rounding("generic"))
    assert_same_bits(run_kernel(spec, a).l, expected)


def test_failing_members_get_the_interpreters_info() -> None:
    n, nb = 9, 4
    a = dominant(40, n).astype(np.float32)
    indefinite = np.arange(40) % n
    a[np.arange(40), indefinite, indefinite] = np.where(np.arange(40) % 4 == 0, np.nan, -3)
    for looking in LOOKINGS:
        expected = interpret(a, nb, looking, multiply_subtract=rounding("generic"))
        assert np.array_equal(expected.info, indefinite + 1)
        assert np.array_equal(run_kernel(make_spec(n, nb, looking=looking), a).info, expected.info)
