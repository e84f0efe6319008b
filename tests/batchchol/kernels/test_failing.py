"""Matrices that are not positive definite: LAPACK's info, and not one bit of their neighbours changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from batchchol.artifacts.c_library import supported_targets
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSpec

from ...kernel_runs import Array, Run, make_spec, run_kernel
from ...matrices import dominant, integer_factors, lapack_factor

N, BATCH = 17, 41
WIDEST = supported_targets()[0]
# The first, some in the middle, next to and on the corner tile, the last.
FAILING_MINORS = (1, 2, 8, 16, 17)

# Every layout, order of evaluation and accuracy class, both codes for a group of canonical matrices; GPUs' emulated.
SPECS = [
    make_spec(N, 4, looking="right", layout="chunked"),
    make_spec(N, 5, looking="left", layout="interleaved", prefetch=False),
    make_spec(N, 3, looking="top", layout="canonical", order="row"),
    make_spec(N, 4, looking="top", layout="chunked", math="fast", in_place=True),
    make_spec(N, 4, looking="right", layout="canonical", order="row", uplo="upper", math="fast"),
    make_spec(N, 16, looking="left", layout="interleaved", dtype="float64"),
    make_spec(N, 2, looking="left", layout="chunked", dtype="float64", math="fast", target="generic"),
    make_spec(N, 6, looking="left", unroll="full", layout="interleaved", order="row", in_place=True),
    make_spec(N, 4, looking="right", layout="chunked", target="cuda"),
    make_spec(N, 5, looking="left", layout="canonical", order="row", in_place=True, target="cuda"),
    make_spec(N, 3, looking="top", layout="interleaved", uplo="upper", math="fast", target="cuda"),
    make_spec(N, 4, looking="left", unroll="full", layout="chunked", math="fast", in_place=True, target="cuda"),
    make_spec(N, 6, looking="top", layout="interleaved", dtype="float64", math="fast", target="cuda"),
    make_spec(N, 4, family="shared", looking="left", matrices=3, layout="chunked", math="fast", target="cuda"),
    make_spec(N, 8, family="shared", looking="right", matrices=1, layout="canonical", in_place=True, target="cuda"),
    make_spec(N, 6, family="shared", looking="top", matrices=2, layout="interleaved", dtype="float64", target="cuda"),
    make_spec(N, 4, family="block", lanes=4, layout="chunked", math="fast", target="cuda"),
    make_spec(N, 8, family="block", lanes=2, layout="canonical", in_place=True, target="cuda"),
    make_spec(N, 6, family="block", lanes=8, layout="interleaved", dtype="float64", uplo="upper", target="cuda"),
    make_spec(N, 16, family="block", lanes=1, layout="chunked", math="fast", in_place=True, target="cuda"),
    make_spec(N, family="warp", matrices=4, layout="chunked", math="fast", target="cuda"),
    make_spec(N, family="warp", matrices=2, layout="canonical", order="row", in_place=True, target="cuda"),
    make_spec(N, family="warp", warps=2, teams=1, layout="interleaved", uplo="upper", math="fast", target="cuda"),
    make_spec(N, family="warp", teams=4, layout="chunked", update="fma", math="fast", in_place=True, target="cuda"),
    make_spec(N, family="strip", warps=4, ahead=1, stride=4, layout="chunked", math="fast", target="cuda"),
]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


def negative_pivot(a: Array, k: int) -> None:
    a[k - 1, k - 1] = -1


def slightly_negative_pivot(a: Array, k: int) -> None:
    """Short of the sum of squares that is subtracted from it."""
    row = np.linalg.solve(np.linalg.cholesky(a[: k - 1, : k - 1]), a[k - 1, : k - 1]) if k > 1 else np.zeros(1)
    a[k - 1, k - 1] = (row**2).sum() * 0.99 - 1e-20


def zero_pivot(a: Array, k: int) -> None:
    a[k - 1, :] = a[:, k - 1] = 0


def negative_zero_pivot(a: Array, k: int) -> None:
    zero_pivot(a, k)
    a[k - 1, k - 1] = -0.0


def nan_pivot(a: Array, k: int) -> None:
    a[k - 1, k - 1] = np.nan


def nan_left_of_the_pivot(a: Array, k: int) -> None:
    a[k - 1, max(k - 2, 0)] = np.nan


def nan_ahead_of_the_pivot(a: Array, k: int) -> None:
    """In its row, first column, where it spoils only what follows from that row."""
    a[k - 1, 0] = np.nan


def infinity_left_of_the_pivot(a: Array, k: int) -> None:
    a[k - 1, max(k - 2, 0)] = np.inf if k > 1 else -np.inf


def minus_infinity_pivot(a: Array, k: int) -> None:
    a[k - 1, k - 1] = -np.inf


def everything_nan_from_the_pivot_on(a: Array, k: int) -> None:
    a[k - 1 :, k - 1 :] = np.nan


FAILURES = [
    negative_pivot,
    slightly_negative_pivot,
    zero_pivot,
    negative_zero_pivot,
    nan_pivot,
    nan_left_of_the_pivot,
    nan_ahead_of_the_pivot,
    infinity_left_of_the_pivot,
    minus_infinity_pivot,
    everything_nan_from_the_pivot_on,
]
every_failure = pytest.mark.parametrize("spoil", FAILURES, ids=lambda spoil: spoil.__name__)


def spoiled(good: Array, spoil: Callable[[Array, int], None]) -> tuple[Array, Array]:
    """A copy in which two of three members fail, in turn at each of the minors, and the info that they deserve."""
    a, info = good.copy(), np.zeros(len(good), np.int32)
    for turn, member in enumerate(member for member in range(len(good)) if member % 3):
        info[member] = FAILING_MINORS[turn % len(FAILING_MINORS)]
        spoil(a[member], int(info[member]))
    return a, info


def run(spec: KernelSpec, a: Array) -> Run:
    return run_kernel(spec, a, (spec.schedule.stride or 2 * spec.lanes) if spec.layout == "chunked" else None)


@cache
def factored_alone(spec: KernelSpec) -> Array:
    """The factors of a batch none of which fails."""
    return run(spec, dominant(BATCH, N).astype(spec.problem.dtype)).l


@every_spec
@every_failure
def test_info_is_the_order_of_the_first_bad_minor_and_no_bit_of_a_neighbour_is_changed(
    spec: KernelSpec, spoil: Callable[[Array, int], None]
) -> None:
    a, expected = spoiled(dominant(BATCH, N), spoil)
    a = a.astype(spec.problem.dtype)
    if np.isfinite(a).all():
        # LAPACK's own test of a pivot lets NaN pass in some builds; of numbers it is the judge.
        assert np.array_equal(lapack_factor(a)[1], expected)
    alone, beside, well = factored_alone(spec), run(spec, a), expected == 0
    assert np.array_equal(beside.info, expected)
    assert np.tril(beside.l[well]).tobytes() == np.tril(alone[well]).tobytes()


@every_spec
def test_columns_before_the_bad_pivot_are_valid(spec: KernelSpec) -> None:
    a, expected = spoiled(dominant(BATCH, N), negative_pivot)
    alone, beside = factored_alone(spec), run(spec, a.astype(spec.problem.dtype)).l
    for member in np.flatnonzero(expected):
        valid = expected[member] - 1
        assert np.array_equal(np.tril(beside[member])[:, :valid], np.tril(alone[member])[:, :valid])


@every_spec
def test_exactly_singular_minors(spec: KernelSpec) -> None:
    """Small integers: nothing rounds, and the pivot of order k is zero after k - 1 updates."""
    factors = integer_factors(33, N)
    expected = np.resize(FAILING_MINORS, 33)
    factors[np.arange(33), expected - 1, expected - 1] = 0
    a = (factors @ factors.swapaxes(1, 2)).astype(spec.problem.dtype)
    info = run(spec, a).info
    assert np.array_equal(lapack_factor(a)[1], expected)
    if spec.problem.math == "ieee":
        assert np.array_equal(info, expected)
    else:
        # An approximate pivot leaves a rounding error of either sign in the place of zero.
        assert (info[info > 0] >= expected[info > 0]).all()


@every_spec
def test_infinite_pivot_is_positive_as_in_lapack(spec: KernelSpec) -> None:
    a = dominant(33, N).astype(spec.problem.dtype)
    minors = np.resize(FAILING_MINORS, 33)
    a[np.arange(33), minors - 1, minors - 1] = np.inf
    l, info = lapack_factor(a)
    result = run(spec, a)
    assert np.array_equal(result.info, info)
    assert np.array_equal(np.isinf(np.tril(result.l)), np.isinf(l))
    assert not np.isnan(np.tril(result.l)).any()


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, np.nan, -np.inf, 4.0])
@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
@pytest.mark.parametrize("target", [WIDEST, "cuda"])
def test_matrices_of_order_one(target: str, layout: str, value: float) -> None:
    result = run_kernel(make_spec(1, 1, layout=layout, target=target), np.full((33, 1, 1), value, np.float32))
    if value == 4:
        assert not result.info.any()
        assert (result.l == 2).all()
    else:
        assert (result.info == 1).all()


# 2**-140 is denormal in float32, and so is every element below; its root is not.
DENORMAL = 2.0**-140


def denormal_matrices() -> tuple[Array, Array]:
    """Exact factors of small integers times 2**-70, and their products, denormal and exact in float32."""
    factors = integer_factors(33, N) * DENORMAL**0.5
    return (factors @ factors.swapaxes(1, 2)).astype(np.float32), factors.astype(np.float32)


@pytest.mark.parametrize(
    ("looking", "target"), [("right", WIDEST), ("left", WIDEST), ("top", WIDEST), ("top", "cuda")]
)
def test_denormal_pivots_are_positive_under_ieee(looking: str, target: str) -> None:
    a, factors = denormal_matrices()
    result = run_kernel(make_spec(N, 4, looking=looking, target=target), a)
    assert not result.info.any()
    assert np.array_equal(np.tril(result.l), factors)


def flushes(spec: KernelSpec) -> bool:
    return spec.problem.math == "fast" and (
        spec.target == "avx512" or (spec.target, spec.problem.dtype) in {("avx2", "float32"), ("cuda", "float32")}
    )


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.problem.math == "fast"], ids=lambda spec: spec.name)
def test_fast_flushes_denormals_where_it_estimates_and_leaves_the_callers_alone(spec: KernelSpec) -> None:
    tiny = 2.0**-140 if spec.problem.dtype == "float32" else 2.0**-1060
    a = (np.eye(N) * tiny)[np.newaxis].repeat(33, 0).astype(spec.problem.dtype)
    info = run_kernel(spec, a, spec.schedule.stride, threads=1).info
    assert (info == (1 if flushes(spec) else 0)).all()
    assert (a[0, 0, 0] * np.ones(1, a.dtype))[0] == tiny, "this thread flushes denormals now"


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.problem.dtype == "float32"], ids=lambda spec: spec.name
)
@pytest.mark.parametrize("exponent", [-126 + 24, 126 - 8])
def test_smallest_and_largest_normal_matrices(spec: KernelSpec, exponent: int) -> None:
    """Normal numbers near the ends of the range, rounding errors included, lose no accuracy."""
    a = dominant(33, N).astype(np.float32) * np.float32(2.0**exponent)
    result = run(spec, a)
    assert not result.info.any()
    assert ratios(a, result.l).max() <= RATIO_BOUND[spec.problem.math]
