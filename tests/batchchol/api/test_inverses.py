"""inv, slogdet and their _ex forms: arrays, batches, failures, empty ones, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, Layout, cho_inverse, default_spec, factor, get_backend, inv, inv_ex, slogdet, slogdet_ex
from batchchol.backends import Backend
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.defaults.lookup import forget
from batchchol.defaults.rules import on_chip

from ..artifacts.test_no_compiler import bare, warned
from ..backends.cuda.test_batches import Foreign, on_device
from .test_cho_solve import LANES, LAYOUTS

__all__ = ["bare", "warned"]

Array = NDArray[Any]
Spd = Callable[..., Array]
N = 6


def one_triangle(a: Array, upper: bool) -> Array:
    """The matrices with NaN where nothing is read."""
    marred = a.copy()
    marred[..., *(np.tril_indices(a.shape[-1], -1) if upper else np.triu_indices(a.shape[-1], 1))] = np.nan
    return marred


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outer", [(), (1,), (N,), (2, 3)], ids=str)
@pytest.mark.parametrize("n", [1, N, 130])
def test_arrays(spd: Spd, n: int, outer: tuple[int, ...], dtype: str, upper: bool) -> None:
    a = spd(*outer, n, dtype=dtype)
    marred, exact = one_triangle(a, upper), a.astype("f8")
    inverse, info = inv_ex(marred, upper=upper)
    assert (inverse.shape, inverse.dtype, info.shape, info.any()) == (a.shape, a.dtype, outer, False)
    close = 40 * np.finfo(dtype).eps
    np.testing.assert_allclose(inverse, np.linalg.inv(exact), rtol=0, atol=close / n)
    np.testing.assert_array_equal(inv(marred, upper=upper), inverse)
    sign, logabsdet = slogdet(marred, upper=upper)
    assert (sign.dtype, logabsdet.dtype, sign.shape) == (a.dtype, a.dtype, outer)
    assert (sign == 1).all()
    np.testing.assert_allclose(logabsdet, np.linalg.slogdet(exact).logabsdet, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("n", "outer", "upper"), [(N, (2, 3), True), (N, (), False), (130, (2,), True), (70, (1,), False)]
)
def test_inverses_by_factors(spd: Spd, n: int, outer: tuple[int, ...], upper: bool, dtype: str) -> None:
    """By a kernel, and by LAPACK where matrices are large, or large and alone."""
    a = spd(*outer, n, dtype=dtype)
    l = np.linalg.cholesky(a)
    given = one_triangle(l.swapaxes(-1, -2).copy() if upper else l, upper)
    before, found = given.copy(), cho_inverse(given, upper=upper, threads=1)
    assert (found.shape, found.dtype) == (a.shape, a.dtype)
    np.testing.assert_allclose(found, np.linalg.inv(a.astype("f8")), rtol=0, atol=40 * np.finfo(dtype).eps / n)
    np.testing.assert_array_equal(given, before)
    for arguments, error, words in (
        ({"upper": 1}, TypeError, "upper: got 1"),
        ({"math": "exact"}, ValueError, "math: got 'exact'"),
        ({"threads": 0}, ValueError, "threads: got 0"),
        ({"stream": 1}, ValueError, "stream: got 1, expected None"),
    ):
        with pytest.raises(error, match=f"^{words}"):
            cho_inverse(given, **arguments)
    with pytest.raises(ValueError, match=r"^L: got shape \(3,\), expected square matrices"):
        cho_inverse(np.ones(3))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_batches(spd: Spd, layout: Layout, upper: bool) -> None:
    a = spd(2 * LANES + 3, N)
    a[4, 2, 2] = -1
    batch, good = Batch.from_dense(one_triangle(a, upper), layout), np.arange(len(a)) != 4
    for given in (batch, batch.marked("upper" if upper else "lower")):
        inverse, info = inv_ex(given, upper=upper)
        np.testing.assert_allclose(inverse[good], np.linalg.inv(a[good]), rtol=1e-4, atol=1e-6)
        sign, logabsdet, same = slogdet_ex(given, upper=upper)
        assert np.flatnonzero(info).tolist() == np.flatnonzero(same).tolist() == [4]
        np.testing.assert_allclose(logabsdet[good], np.linalg.slogdet(a[good]).logabsdet, rtol=1e-5)
        assert np.isnan([sign[4], logabsdet[4]]).all()


def test_failures_are_named(spd: Spd) -> None:
    a = spd(2, 3, N)
    a[1, 2, 3, 3] = np.nan
    for call in (inv, slogdet):
        words = rf"matrix \(1, 2\) .* minor of order 4 has a NaN \(1 of 6 matrices failed; {call.__name__}_ex returns"
        with pytest.raises(np.linalg.LinAlgError, match=words):
            call(a)
        with pytest.raises(np.linalg.LinAlgError, match="matrix 5 is not positive definite"):
            call(Batch.from_dense(a.reshape(6, N, N)))


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 5, 5), (2, 0, 200, 200)], ids=str)
def test_nothing(shape: tuple[int, ...]) -> None:
    a = np.empty(shape, np.float32)
    assert inv(a).shape == shape
    sign, logabsdet = slogdet(a)
    assert (sign == np.linalg.slogdet(a).sign).all()
    assert (logabsdet == np.linalg.slogdet(a).logabsdet).all()


def test_large_and_small_determinants_do_not_overflow() -> None:
    a = np.stack([np.eye(100) * 1e30, np.eye(100) * 1e-30])
    np.testing.assert_allclose(slogdet(a).logabsdet, [100 * np.log(1e30), -100 * np.log(1e30)])


def test_arguments(spd: Spd) -> None:
    a, out = spd(4, N), np.zeros((4, N, N), np.float32)
    assert inv(a, out=out, threads=2) is out
    np.testing.assert_array_equal(out, inv(a.tolist() and a))
    np.testing.assert_allclose(inv(a, math="fast"), out, rtol=1e-5, atol=1e-6)
    calls: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"assume_a": "sym"}, ValueError, "assume_a: got 'sym', expected 'pos'"),
        ({"upper": 1}, TypeError, "upper: got 1"),
        ({"math": "exact"}, ValueError, "math: got 'exact'"),
        ({"backend": "gpu"}, ValueError, "backend='gpu' is unknown"),
    ]
    for arguments, error, words in calls:
        for call in (inv, inv_ex, slogdet, slogdet_ex):
            with pytest.raises(error, match=f"^{words}"):
                call(a, **arguments)
    for call in (inv, slogdet):
        with pytest.raises(TypeError, match=r"^a: got dtype int64, expected float32 or float64: pass np\.asarray\(a"):
            call([[2, 0], [0, 2]])
        with pytest.raises(ValueError, match=r"^a: got shape \(2, 3\), expected square matrices"):
            call(np.ones((2, 3)))


def test_out_may_be_anything_that_can_be_written(spd: Spd) -> None:
    a = spd(4, N)
    expected = inv(a)
    swapped, strided = np.zeros((4, N, N), ">f4"), np.zeros((4, 2 * N, N), "f4")[:, ::2]
    for out in (swapped, strided):
        assert inv(a, out=out) is out
        np.testing.assert_array_equal(out, expected)
    alone = np.zeros((N, N), np.float32)
    np.testing.assert_array_equal(inv(a[1], out=alone), expected[1])
    np.testing.assert_array_equal(inv(Batch.from_dense(a), out=np.zeros_like(a)), expected)
    assert inv(a, out=a) is a
    np.testing.assert_array_equal(a, expected)
    given = spd(4, N)
    for out, error, words in (
        (np.zeros((3, N, N), "f4"), ValueError, r"out: got shape \(3, 6, 6\), expected \(4, 6, 6\)"),
        (np.zeros((4, N, N)), TypeError, "out: got dtype float64"),
        ([0], TypeError, "out: got list"),
    ):
        with pytest.raises(error, match=f"^{words}"):
            inv(given, out=out)


@pytest.mark.usefixtures("warned")
def test_without_a_compiler(spd: Spd) -> None:
    a = spd(9, N)
    np.testing.assert_allclose(cho_inverse(np.linalg.cholesky(a)), np.linalg.inv(a), rtol=1e-4, atol=1e-6)
    for given in (a, Batch.from_dense(a, Layout.canonical())):
        np.testing.assert_allclose(inv(given), np.linalg.inv(a), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(slogdet(given).logabsdet, np.linalg.slogdet(a).logabsdet, rtol=1e-5)


def test_on_a_gpu(cuda: Backend, spd: Spd) -> None:
    a = spd(N, N)
    for given in (on_device(a), Foreign(on_device(a)), DeviceBatch.from_dense(a, Layout.chunked(32))):
        inverse, info = inv_ex(given)
        if isinstance(given, DeviceBatch):
            by_factors = cho_inverse(factor(given).L)
            np.testing.assert_allclose(cuda.host(by_factors), np.linalg.inv(a), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(cuda.host(inverse), np.linalg.inv(a), rtol=1e-4, atol=1e-6)
        assert not cuda.host(info).any()
        sign, logabsdet = slogdet(given)
        np.testing.assert_array_equal(cuda.host(sign), np.ones(N, "f4"))
        np.testing.assert_allclose(cuda.host(logabsdet), np.linalg.slogdet(a).logabsdet, rtol=1e-5)
    np.testing.assert_allclose(slogdet(a, backend="cuda").logabsdet, np.linalg.slogdet(a).logabsdet, rtol=1e-5)
    np.testing.assert_allclose(inv(a, backend="cuda"), get_backend("cuda").host(inverse), rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "dtype"), [(15, "float64"), (22, "float32"), (28, "float64"), (31, "float32"), (41, "float32")]
)
def test_larger_ones_on_a_gpu(n: int, dtype: str, spd: Spd) -> None:
    """By tiles in shared memory, beside LAPACK."""
    gpu, a = get_backend("cuda"), spd(2_077, n, dtype=dtype)
    l, close = np.linalg.cholesky(a), 40 * np.finfo(dtype).eps
    for layout in (Layout.canonical(), Layout.chunked(32), Layout.interleaved()):
        inverse, info = inv_ex(DeviceBatch.from_dense(a, layout))
        assert not gpu.host(info).any()
        by_factors = cho_inverse(DeviceBatch.from_dense(l, layout).marked("lower"))
        for found in (gpu.host(inverse), gpu.host(by_factors)):
            np.testing.assert_allclose(found, np.linalg.inv(a), rtol=0, atol=close / n)
            assert (found == found.swapaxes(1, 2)).all()


def test_determinants_by_factors_on_a_gpu(cuda: Backend, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a thread has no room for its triangle."""
    a = spd(2, 20, 5)
    a[1, 3, 2, 2] = -1
    given = on_device(a), DeviceBatch.from_dense(a.reshape(40, 5, 5), Layout.chunked(32))
    by_one = [tuple(map(cuda.host, slogdet_ex(each))) for each in given]
    monkeypatch.setattr(on_chip, "IN_REGISTERS", dict.fromkeys(on_chip.IN_REGISTERS, (4, 4)))
    forget()
    for each, expected in zip(given, by_one, strict=True):
        for found, known in zip(slogdet_ex(each), expected, strict=True):
            np.testing.assert_allclose(cuda.host(found), known, rtol=1e-6)
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("upper", [False, True])
def test_determinants_of_those_that_fail_on_a_gpu(cuda: Backend, spd: Spd, dtype: str, upper: bool) -> None:
    a = spd(2, 20, 9, dtype=dtype)
    a[1, 3, 5, 5] = -1
    exact, batch = np.linalg.slogdet(a).logabsdet, DeviceBatch.from_dense(a.reshape(40, 9, 9), Layout.interleaved())
    for given in (on_device(a), batch, batch.marked("upper" if upper else "lower")):
        sign, logabsdet, info = (cuda.host(each).reshape(2, 20) for each in slogdet_ex(given, upper=upper))
        assert np.argwhere(info).tolist() == [[1, 3]]
        assert np.isnan(sign[1, 3])
        np.testing.assert_allclose(logabsdet, np.where(info, np.nan, exact), rtol=1e-5)
        with pytest.raises(np.linalg.LinAlgError, match=r"matrix (\(1, 3\)|23) is not .*; slogdet_ex returns"):
            slogdet(given, upper=upper)
    sign, logabsdet, info = slogdet_ex(on_device(a[:0]))
    assert [tuple(each.shape) for each in (sign, logabsdet, info)] == [(0, 20)] * 3
    sign, logabsdet, info = (cuda.host(each) for each in slogdet_ex(on_device(np.empty((3, 0, 0), dtype))))
    assert (sign.tolist(), logabsdet.tolist(), info.tolist()) == ([1] * 3, [0] * 3, [0] * 3)
    for arguments, words in (({"backend": "cpu"}, "backend: got 'cpu'"), ({"math": "exact"}, "math: got 'exact'")):
        for given in (on_device(a), batch):
            with pytest.raises(ValueError, match=f"^{words}"):
                slogdet(given, **arguments)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("layout", [Layout.chunked(LANES), Layout.interleaved("row")], ids=str)
def test_one_triangle_in_the_layout_of_a_batch(cuda: Backend, spd: Spd, layout: Layout, upper: bool) -> None:
    a = spd(2 * LANES + 3, N)
    a[4, 2, 2] = -1
    good, uplo = np.arange(len(a)) != 4, "upper" if upper else "lower"
    both = [Batch.from_dense(one_triangle(a, upper), layout), DeviceBatch.from_dense(one_triangle(a, upper), layout)]
    expected = np.linalg.inv(a)
    kept = np.triu(expected) if upper else np.tril(expected)
    for matrices, host in zip(both, (np.asarray, cuda.host), strict=True):
        for out in (matrices.like(), matrices):
            x, info = inv_ex(matrices.marked(uplo).copy() if out is matrices else matrices, upper=upper, out=out)
            assert x.triangle == uplo
            assert np.shares_memory(x.data, out.data) if x.backend == "cpu" else x.address == out.address
            np.testing.assert_allclose(host(x.to_dense())[good], kept[good], rtol=1e-4, atol=1e-6)
            assert np.flatnonzero(host(info)).tolist() == [4]
    whole = Batch.from_dense(a[good], layout)
    l = factor(whole, default_spec(N, layout=layout.kind, order=layout.order, chunk=layout.chunk)).L
    x = cho_inverse(l, out=l.like())
    np.testing.assert_allclose(x.to_dense(), np.tril(expected[good]), rtol=1e-4, atol=1e-6)


def test_batches_that_inverses_cannot_be_written_to(spd: Spd) -> None:
    a = spd(2 * LANES, N)
    batch, rows = Batch.from_dense(a, Layout.chunked(LANES)), Batch.from_dense(a, Layout.canonical())
    for given, how, words in (
        (rows, {"out": rows.like()}, "out: got a Batch, expected an array of shape"),
        (batch, {"out": rows}, "out: got .* expected .*, as the batch is"),
        (batch, {"out": batch.like(), "jitter": "auto"}, "out: got a Batch with jitter, expected an array"),
        (batch, {"out": batch.like(), "logdet": True}, "out: got a Batch with logdet, expected an array"),
        (batch, {"out": batch.like(), "stream": 1}, "stream: got 1, expected None"),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            inv_ex(given, **how)
