"""Orders above 128: LAPACK's factors and info, with the manners of every other order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    Layout,
    SpecError,
    cho_solve,
    cholesky,
    cholesky_ex,
    default_spec,
    factor,
    inv,
    slogdet,
    solve,
    solve_ex,
)
from batchchol.backends import lapack
from batchchol.batches.host_memory import aligned_empty

Array = NDArray[np.floating]
Spd = Callable[..., Array]

N = 130


def assert_factors(l: Array, a: Array, upper: bool = False) -> None:
    reference = np.linalg.cholesky(a.astype(np.float64), upper=upper)
    rounding = 4 * a.shape[-1] * np.finfo(a.dtype).eps * np.abs(reference).max(initial=0)
    np.testing.assert_allclose(l, reference, rtol=0, atol=rounding)


def triangle(a: Array, upper: bool) -> Array:
    return np.triu(a) if upper else np.tril(a)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [129, 200, 513])
def test_orders_above_128(spd: Spd, n: int, dtype: str, upper: bool) -> None:
    a = spd(3, n, dtype=dtype)
    a[:, *(np.tril_indices(n, -1) if upper else np.triu_indices(n, 1))] = np.nan
    before = a.copy()
    l, info = cholesky_ex(a, upper=upper)
    assert (l.shape, l.dtype, info.shape, info.dtype) == (a.shape, a.dtype, (3,), np.int32)
    assert not info.any()
    assert_factors(l, spd(3, n, dtype=dtype), upper)
    np.testing.assert_array_equal(l, triangle(l, upper))
    np.testing.assert_array_equal(a, before, err_msg="the input is left as it was")
    assert not np.may_share_memory(a, l)


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,), (3, 0)], ids=str)
def test_any_stack_of_matrices(spd: Spd, batch: tuple[int, ...]) -> None:
    a = spd(*batch, N)
    l, info = cholesky_ex(a)
    assert (l.shape, info.shape) == (a.shape, batch)
    assert_factors(l, a)


def test_any_memory_order(spd: Spd) -> None:
    a = spd(3, N)
    expected = cholesky(a)
    unaligned = np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape)
    for view in (np.asfortranarray(a), a.astype(">f4"), np.repeat(a, 2, axis=0)[::2], unaligned):
        np.testing.assert_array_equal(cholesky(view), expected)
    np.testing.assert_array_equal(cholesky(a[0].astype(np.float64).tolist()), cholesky(a[0].astype(np.float64)))


@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_math_is_accepted(spd: Spd, math: str) -> None:
    a = spd(2, N)
    np.testing.assert_array_equal(cholesky(a, math=math), cholesky(a))


@pytest.mark.parametrize("empty", [False, True])
def test_what_takes_a_kernel_is_refused(spd: Spd, empty: bool) -> None:
    a = spd(0 if empty else 2, N)
    with pytest.raises(ValueError, match=r"spec: got a kernel .* order 5, expected None .* of order 130"):
        cholesky(a, spec=default_spec(5))
    with pytest.raises(ValueError, match="math: got 'junk'"):
        cholesky(a, math="junk")  # type: ignore[call-overload]


# One at each end of a matrix, one in the middle of LAPACK's blocks.
ORDERS = (1, 2, 64, 101, N)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("bad", [-1.0, 0.0, -np.inf, np.nan])
def test_failing_members_have_info_and_whole_columns_before(spd: Spd, bad: float, upper: bool) -> None:
    a = spd(len(ORDERS) + 2, N, dtype="float64")
    good = cholesky(a, upper=upper)
    for member, order in enumerate(ORDERS):
        a[member, order - 1, order - 1] = bad
    l, info = cholesky_ex(a, upper=upper)
    np.testing.assert_array_equal(info, [*ORDERS, 0, 0])
    for member, order in enumerate([*ORDERS, N + 1, N + 1]):
        kept = np.s_[: order - 1, :] if upper else np.s_[:, : order - 1]
        np.testing.assert_allclose(l[member][kept], good[member][kept], rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(l, triangle(l, upper), err_msg="the other triangle is zero")


@pytest.mark.parametrize("n", [5, 64, 150])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_element_that_is_not_finite_fails_at_its_row(spd: Spd, n: int, bad: float) -> None:
    a = spd(3, n)
    a[1, n - 2, 1] = bad
    np.testing.assert_array_equal(lapack.potrf(a, False, 1)[1], [0, n - 1, 0])


def test_exception_is_that_of_every_order(spd: Spd) -> None:
    a = spd(2, 2, N)
    a[1, 0, 8, 3] = np.nan
    with pytest.raises(
        np.linalg.LinAlgError, match=r"^matrix \(1, 0\) .* order 9 has a NaN \(1 of 4 matrices failed"
    ):
        cholesky(a)
    a[0, 1, 4, 4] = -3
    with pytest.raises(np.linalg.LinAlgError, match=r"^matrix \(0, 1\) .* order 5 is not \(2 of 4 matrices failed"):
        cholesky(a)


def test_any_number_of_threads_gives_the_same_bits(spd: Spd) -> None:
    a = spd(67, N)
    a[41, 7, 7] = -1
    expected, info = lapack.potrf(a, False, 1)
    for threads in (2, 3, 100):
        l, same = lapack.potrf(a, False, threads)
        np.testing.assert_array_equal(l, expected)
        np.testing.assert_array_equal(same, info)


def test_blas_threads_are_for_few_large_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(lapack, "_LARGE_ORDER", 9)
    monkeypatch.setattr(lapack, "over_ranges", lambda work, count, threads, size, arrays: seen.append(threads))
    held = lapack.blas.at_most
    monkeypatch.setattr(lapack.blas, "at_most", lambda threads: (seen.append(threads), held(threads))[1])
    for n, count in ((8, 2), (9, 2), (9, 4)):
        lapack.potrf(np.zeros((count, n, n)), False, 4)
    assert seen == [1, 4, 4, 1, 1, 4], "BLAS's threads and ours: never both"


def test_nothing_is_written_around_the_factors(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[Array] = []

    def fenced(shape: tuple[int, ...], dtype: Any, purpose: str) -> Array:
        rooms.append(aligned_empty((shape[0] + 2, *shape[1:]), dtype, purpose))
        rooms[-1][...] = 7
        return rooms[-1][1:-1]

    monkeypatch.setattr(lapack, "aligned_empty", fenced)
    a = spd(5, N)
    a[4, 100, 100] = -1
    lapack.potrf(a, True, 2)
    (room,) = rooms
    np.testing.assert_array_equal(room[[0, -1]], 7)


@pytest.mark.parametrize("upper", [False, True])
def test_nothing_is_lost_behind_an_infinite_pivot(spd: Spd, upper: bool) -> None:
    """It is good, and makes zeros of finite elements, but not of NaN."""
    a = spd(2, N)
    a[:, 4, 4] = np.inf
    a[1, 9, 4] = a[1, 4, 9] = np.nan
    l, info = cholesky_ex(a, upper=upper)
    assert info.tolist() == [0, 10]
    assert solve_ex(a, a[..., 0], upper=upper).info.tolist() == [0, 10]
    lower = l[0].T if upper else l[0]
    assert lower[4, 4] == np.inf
    assert not lower[5:, 4].any()
    assert np.isfinite(np.delete(lower, 4, 0)).all()


def test_larger_batches(spd: Spd) -> None:
    """They are canonical, in rows, and solved by, inverted and so on as arrays are; other layouts are refused."""
    a = spd(3, N)
    b = a[..., 0]
    batch = Batch.from_dense(a)
    x, info, logs = solve_ex(batch, b, logdet=True)
    assert not info.any()
    np.testing.assert_array_equal(x, solve(a, b))
    np.testing.assert_array_equal(logs, slogdet(a).logabsdet)
    np.testing.assert_array_equal(inv(batch), inv(a))
    np.testing.assert_array_equal(cho_solve(factor(batch).L, b), x)
    with pytest.raises(SpecError, match=r"a: got matrices of order 130, expected at most 128 .* use to_dense\(\)"):
        solve(batch, b, spec=default_spec(8, layout="canonical", op="posv"))
    a[1, 70, 70] = -1
    batch = Batch.from_dense(a)
    assert batch.layout == Layout.canonical("row")
    for out in (None, batch):
        l, info = factor(batch, out=out)
        assert info.tolist() == [0, 71, 0]
        np.testing.assert_array_equal(l.to_dense()[::2], cholesky(a[::2]))
    with pytest.raises(
        ValueError, match=r"layout: got chunked32-col for matrices of order 130, expected Layout.*128"
    ):
        Batch.empty(N, 2, Layout.chunked(32))
