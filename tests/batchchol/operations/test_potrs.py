"""The check of solutions: right ones pass it, and whatever is wrong with one, it fails."""

from __future__ import annotations

import numpy as np
import pytest

from batchchol import Batch
from batchchol.errors import ResidualError
from batchchol.operations.potrs import check, oracle, ratio_bound, ratios
from kernelgen import Layout

from ...matrices import conditioned, lapack_factor, wishart
from ...solve_interpreter import interpret_solve

Array = np.typing.NDArray[np.floating]
LAYOUTS = [Layout.canonical(), Layout.chunked(16), Layout.interleaved("row")]


def system(n: int, count: int = 5, nrhs: int = 3, dtype: str = "float32") -> tuple[Array, Array]:
    l, _ = lapack_factor(wishart(count, n).astype(dtype))
    return l, np.random.default_rng(n).standard_normal((count, n, nrhs)).astype(dtype)


def by_hand(l: Array, b: Array, x: Array) -> float:
    """The definition, one element after another."""
    n, worst = len(l), 0.0
    rows = [[float(l[i, j]) if j <= i else 0.0 for j in range(n)] for i in range(n)]
    for c in range(b.shape[-1]):
        for i in range(n):
            product = sum(rows[i][p] * rows[q][p] * float(x[q, c]) for p in range(n) for q in range(n))
            magnitude = sum(abs(rows[i][p] * rows[q][p] * float(x[q, c])) for p in range(n) for q in range(n))
            worst = max(worst, abs(float(b[i, c]) - product) / ((3 * n + 1) * 2.0**-24 * magnitude))
    return worst


def test_ratio_is_its_definition() -> None:
    l, b = system(6)
    x = oracle(l, b).astype(np.float32)
    x[1, 4, 2] *= 1.001
    np.testing.assert_allclose(ratios(l, b, x), [by_hand(*each) for each in zip(l, b, x, strict=True)], rtol=1e-6)


@pytest.mark.parametrize("upper", [False, True])
def test_the_oracle_is_lapacks_in_float64(upper: bool) -> None:
    l, b = system(6)
    factors = l.swapaxes(1, 2) if upper else l
    x = oracle(factors, b, upper)
    assert x.dtype == np.float64
    exact = l.astype(float)
    np.testing.assert_allclose(exact @ (exact.swapaxes(1, 2) @ x), b, atol=1e-12)


def test_the_other_triangle_is_not_read() -> None:
    l, b = system(5)
    dirty = np.where(np.tri(5, dtype=bool), l, np.nan)
    x = oracle(l, b).astype(np.float32)
    assert np.array_equal(ratios(dirty, b, x), ratios(l, b, x))
    assert np.array_equal(oracle(dirty, b), oracle(l, b))
    assert np.array_equal(oracle(dirty.swapaxes(1, 2), b, upper=True), oracle(l.swapaxes(1, 2), b, upper=True))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_no_solution(value: float) -> None:
    l, b = system(5)
    x = oracle(l, b).astype(np.float32)
    x[2, 1, 0] = value
    l[3, 4, 4] = value
    assert np.array_equal(np.isinf(ratios(l, b, x)), np.arange(5) // 2 == 1)


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 5, 0)])
def test_of_no_solutions_there_is_no_ratio(shape: tuple[int, int, int]) -> None:
    l, b = np.ones((shape[0], 5, 5), np.float32), np.empty(shape, np.float32)
    assert np.array_equal(ratios(l, b, b), np.zeros(shape[0]))
    assert oracle(l, b).shape == shape
    assert check(Batch.from_dense(l, Layout.canonical()), b, b, "ieee") == 0


def test_a_right_hand_side_of_zeros_has_the_solution_zero() -> None:
    l, b = system(4)
    b[...] = 0
    assert not ratios(l, b, b).any()
    assert np.isinf(ratios(l, b + np.float32(1), b)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_solutions_of_correctly_rounded_operations_pass(n: int, dtype: str) -> None:
    condition = 1e6 if n > 1 else 1
    l, info = lapack_factor(conditioned(50, n, condition).astype(dtype))
    b = np.random.default_rng(n).standard_normal((50, n, 4)).astype(dtype)
    good = info == 0
    x = interpret_solve(l[good], b[good], min(n, 4)).x
    assert ratios(l[good], b[good], x).max() <= ratio_bound(n, "ieee")


def test_bounds() -> None:
    assert [ratio_bound(n, "ieee") for n in (1, 2, 3, 128)] == [1.5, 1.5, 1.0, 1.0]
    assert [ratio_bound(n, "fast") for n in (1, 2, 3, 128)] == [2.5, 2.5, 1.0, 1.0]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_batch_is_checked_in_its_layout(layout: Layout) -> None:
    l, b = system(6, 40)
    batch, x = Batch.from_dense(l, layout), oracle(l, b).astype(np.float32)
    transposed = Batch.from_dense(np.ascontiguousarray(l.swapaxes(1, 2)), layout)
    seen = check(batch, b, x, "ieee")
    assert seen == ratios(l, b, x).max() == check(transposed, b, x, "ieee", upper=True)
    assert seen == check(transposed.marked("upper"), b, x, "ieee")
    x[17, 2, 1] *= 1 + 2e-4
    for factors, upper in ((batch, False), (transposed, True)):
        with pytest.raises(
            ResidualError, match=r"^matrix 17 has solutions of the residual ratio .* bound of 1.0 for"
        ):
            check(factors, b, x, "ieee", upper=upper)


def test_both_ends_are_among_the_samples() -> None:
    l, b = system(3, 1000)
    batch, right = Batch.from_dense(l, Layout.canonical()), oracle(l, b).astype(np.float32)
    for place in (0, 999):
        x = right.copy()
        x[place, 0, 0] = np.nan
        with pytest.raises(ResidualError, match=f"^matrix {place} has .* ratio inf"):
            check(batch, b, x, "fast", samples=7)
