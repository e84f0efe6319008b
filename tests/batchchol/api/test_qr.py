"""QR factorizations and least squares in the public calls: on the host, without a compiler, and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, Layout, RectangularBatch, cholesky, get_backend, lstsq, lstsq_ex, ormqr, qr
from batchchol.backends import Backend
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.operations.qr import BOUND, factor_ratios, orthogonal, orthogonality_ratios, solve_ratios
from kernelgen import Problem

from ...qr_runs import matrices
from ...times.general.qr_gpu_checks import check_calls
from ..artifacts.test_no_compiler import bare, warned

__all__ = ["bare", "warned"]

Array = NDArray[Any]
RECTANGULAR = ((Layout.chunked(16), 4), (Layout.canonical("col"), 2), (Layout.interleaved("row"), 4))


def examples(*shape: int, dtype: str = "float64") -> Array:
    *outer, m, n = shape
    random = np.random.default_rng(n)
    return matrices("normal", random, int(np.prod(outer)), m, n).reshape(shape).astype(dtype)


def check_rectangular_batch(backend: Backend, a: Array, layout: Layout) -> None:
    """All calls on a batch are those on arrays, in its layout; it stays as it is."""
    count, m, n = a.shape
    batch, host, near = backend.from_rectangles(a, layout), backend.host, 1e4 * np.finfo(a.dtype).eps
    assert (len(batch), batch.layout, batch.dtype) == (count, layout, a.dtype)
    for mode in ("reduced", "complete"):
        for positive in (False, True):
            q, r = qr(batch, mode, positive=positive)
            expected = qr(a, mode, positive=positive)
            assert {q.layout, r.layout} == {layout}
            for found, wanted in ((q, expected.Q), (r, expected.R)):
                dense = host(found.to_dense())
                assert dense.shape == wanted.shape
                assert np.abs(dense - wanted).max() < near
                assert isinstance(found, Batch) == (wanted.shape[1] == wanted.shape[2])
    assert np.abs(host(qr(batch, "r").to_dense()) - qr(a, "r")).max() < near
    factors, tau = qr(batch, "raw")
    made = host(factors.to_dense())
    assert factor_ratios(a, made, host(tau)).max() <= BOUND["ieee"]
    for b in (examples(count, m, 3, dtype="float32"), examples(count, m, 1, dtype="float32")[..., 0]):
        there = backend.place(b)
        assert np.abs(host(ormqr((factors, tau), there)) - ormqr((made, host(tau)), b)).max() < near
        if m >= n:
            x, info = lstsq_ex(batch, there)
            assert not host(info).any()
            assert np.abs(host(x) - lstsq(a, b)).max() < 100 * near
    assert np.array_equal(host(batch.to_dense()), a)


def assert_factors(a: Array, q: Array, r: Array, mode: str) -> None:
    """Those of NumPy, but for rounding."""
    expected, near = np.linalg.qr(a, mode), 1e4 * np.finfo(a.dtype).eps
    assert (q.shape, r.shape, q.dtype) == (expected.Q.shape, expected.R.shape, a.dtype)
    assert np.abs(q - expected.Q).max() < near
    assert np.abs(r - expected.R).max() < near
    assert not np.tril(r, -1).any()


@pytest.mark.parametrize("shape", [(2, 7, 4, 4), (9, 5, 3), (6, 3, 5), (2, 130, 3)], ids=str)
def test_arrays(shape: tuple[int, ...]) -> None:
    a = examples(*shape)
    before = a.copy()
    for mode in ("reduced", "complete"):
        assert_factors(a, *qr(a, mode), mode)
        q, r = qr(a, mode, positive=True)
        assert np.abs(q @ r - a).max() < 1e-12
        assert (np.diagonal(r, axis1=-2, axis2=-1) >= 0).all()
    assert np.array_equal(qr(a, "r"), qr(a).R)
    assert np.array_equal(qr(a, "r", positive=True), qr(a, positive=True).R)
    factors, tau = qr(a, "raw")
    h, scalars = np.linalg.qr(a, "raw")
    assert np.abs(factors.swapaxes(-1, -2) - h).max() < 1e-11
    assert np.abs(tau - scalars).max() < 1e-11
    for b in (examples(*shape[:-1], 3), examples(shape[-2], 2), examples(shape[-2], 1)[:, 0]):
        product = ormqr((factors, tau), b)
        expected = np.linalg.qr(a, "complete").Q.swapaxes(-1, -2) @ (b if b.ndim > 1 else b[:, None])
        assert np.abs(product - (expected if b.ndim > 1 else expected[..., 0])).max() < 1e-11
    assert np.array_equal(a, before)
    if shape[-2] < shape[-1]:
        return
    flat = a.reshape(-1, *shape[-2:])
    for b in (
        examples(*shape[:-1], 3),
        examples(*shape[:-1], 1)[..., 0],
        examples(shape[-2], 2),
        examples(shape[-2], 1)[:, 0],
    ):
        vector = b.shape in (shape[-2:-1], shape[:-1])
        x = lstsq(a, b)
        columns = np.broadcast_to(b[..., None] if vector else b, (*shape[:-1], 1 if vector else b.shape[-1]))
        assert x.shape == (*shape[:-2], shape[-1], *columns.shape[-1:] * (not vector))
        found = x.reshape(len(flat), shape[-1], -1)
        assert solve_ratios(flat, columns.reshape(*flat.shape[:2], -1), found).max() <= BOUND["ieee"]
    assert lstsq(a[0], b=examples(4, *shape[:-1], 2)[:, 0]).shape == (4, *shape[1:-2], shape[-1], 2)


def test_straight_line_code_of_tall_matrices_has_a_budget() -> None:
    target = get_backend("cpu").target
    unrolls = [
        default_choice(Request(Problem(12, op="geqrf", m=m), target, "canonical", "row")).spec.schedule.unroll
        for m in (12, 70)
    ]
    assert unrolls == ["full", "tiles"]


@pytest.mark.usefixtures("warned")
def test_arrays_without_a_compiler() -> None:
    test_arrays((9, 5, 3))
    a = examples(5, 4, 4)
    q, r = qr(Batch.from_dense(a, Layout.chunked(4)))
    assert_factors(a, q.to_dense(), r.to_dense(), "reduced")
    a, b = examples(5, 4, 3), examples(5, 4, 2)
    batch = RectangularBatch.from_dense(a, Layout.chunked(4))
    q, r = qr(batch)
    assert_factors(a, q.to_dense(), r.to_dense(), "reduced")
    assert np.array_equal(ormqr(qr(batch, "raw"), b), ormqr(qr(a, "raw"), b))
    assert np.array_equal(lstsq(batch, b), lstsq(a, b))


@pytest.mark.parametrize("layout", [Layout.canonical("col"), Layout.chunked(16, "row")], ids=str)
def test_batches(layout: Layout) -> None:
    a = examples(37, 5, 5, dtype="float32")
    batch = Batch.from_dense(a, layout)
    q, r = qr(batch)
    assert (q.layout, r.layout, q.triangle, r.triangle) == (layout, layout, None, "upper")
    assert_factors(a, q.to_dense(), r.to_dense(), "reduced")
    factors, tau = qr(batch, "raw", threads=1)
    assert factor_ratios(a, factors.to_dense(), tau).max() <= BOUND["ieee"]
    assert orthogonality_ratios(orthogonal(factors.to_dense(), tau), "float32").max() <= BOUND["ieee"]
    assert np.array_equal(qr(batch, "r").to_dense(), r.to_dense())
    expected = qr(a, positive=True)
    q, r = qr(batch, positive=True)
    assert (q.layout, r.layout, r.triangle) == (layout, layout, "upper")
    assert np.array_equal(q.to_dense(), expected.Q)
    assert np.array_equal(r.to_dense(), expected.R)
    assert np.array_equal(qr(batch, "r", positive=True).to_dense(), expected.R)
    assert np.array_equal(batch.to_dense(), a)
    a[7, :, 2] = 0
    batch = Batch.from_dense(a, layout)
    for b in (examples(37, 5, 3, dtype="float32"), examples(37, 5, 1, dtype="float32")[..., 0]):
        x, info = lstsq_ex(batch, b)
        assert (x.shape, info.nonzero()[0].tolist(), info[7]) == (b.shape, [7], 3)
        good = np.delete(np.arange(37), 7)
        assert np.array_equal(x[good], lstsq(a[good], b[good]))
    with pytest.raises(ValueError, match=r"^b: got shape \(5,\), expected"):
        lstsq(batch, b[0])


@pytest.mark.parametrize(("layout", "m"), RECTANGULAR, ids=str)
def test_rectangular_batches(layout: Layout, m: int) -> None:
    check_rectangular_batch(get_backend("cpu"), examples(37, m, 3, dtype="float32"), layout)


@pytest.mark.gpu
@pytest.mark.parametrize(("layout", "m"), RECTANGULAR, ids=str)
def test_rectangular_batches_on_a_gpu(layout: Layout, m: int) -> None:
    check_rectangular_batch(get_backend("cuda"), examples(37, m, 3, dtype="float32"), layout)


def test_dependent_columns() -> None:
    a, b = examples(6, 5, 3), examples(6, 5, 1)
    a[2, :, 1] = 0
    x, info = lstsq_ex(a, b)
    assert info.tolist() == [0, 0, 2, 0, 0, 0]
    good = info == 0
    assert solve_ratios(a[good], b[good], x[good]).max() <= BOUND["ieee"]
    words = (
        "^matrix 2 has linearly dependent columns: element 2 of the diagonal of R is zero .1 of 6.*lstsq_ex returns"
    )
    with pytest.raises(np.linalg.LinAlgError, match=words):
        lstsq(a, b)


@pytest.mark.parametrize("m", [5, 130])
def test_info_of_lapack_is_that_of_kernels(m: int) -> None:
    a = examples(3, m, 3)
    a[0], a[1, 0, 1] = 0, np.inf
    x, info = lstsq_ex(a, examples(3, m, 1))
    assert info.tolist() == [1, 0, 0]
    assert np.isfinite(x).all((-1, -2)).tolist() == [False, False, True]
    assert np.isnan(x[1]).all()


def test_nothing() -> None:
    assert not solve_ratios(np.empty((0, 4, 3)), np.empty((0, 4, 2)), np.empty((0, 3, 2))).size
    for shape in ((0, 4, 3), (2, 0, 0), (3, 4, 0)):
        q, r = qr(np.empty(shape))
        expected = np.linalg.qr(np.empty(shape))
        assert (q.shape, r.shape) == (expected.Q.shape, expected.R.shape)
        assert lstsq(np.empty(shape), np.empty((*shape[:-1], 2))).shape == (*shape[:-2], shape[-1], 2)


def test_what_is_refused() -> None:
    a, b = examples(4, 5, 3), examples(4, 5, 2)
    batch = Batch.from_dense(examples(3, 4, 4))
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: qr(a, "economic"), ValueError, "mode: got 'economic', expected one of 'reduced'"),
        (lambda: qr(a, "raw", positive=True), ValueError, "positive: got True, expected False for mode='raw'"),
        (lambda: qr(batch.marked("lower")), ValueError, "a: got one whose lower triangle alone has a meaning"),
        (lambda: qr(batch, backend="cuda"), ValueError, "backend: got 'cuda', expected 'cpu'"),
        (lambda: qr(a.astype(int)), TypeError, "a: got dtype int64"),
        (lambda: qr(a[0, 0]), ValueError, r"a: got shape \(3,\), expected matrices"),
        (lambda: qr(a, stream=0), ValueError, "stream: got 0"),
        (lambda: qr(a, math="slow"), ValueError, "math: got 'slow'"),
        (lambda: qr(a, threads=0), ValueError, "threads: got 0"),
        (lambda: ormqr((a, a), b), ValueError, r"factors: got tau of shape \(4, 5, 3\) and dtype float64, expected"),
        (lambda: ormqr(qr(batch, "raw"), b), ValueError, r"b: got shape \(4, 5, 2\), expected \(4,\), \(3, 4\)"),
        (lambda: RectangularBatch.from_dense(a[0]), ValueError, r"a: got shape \(5, 3\), expected \(batch, m, n\)"),
        (lambda: RectangularBatch.empty(129, 2, 3), ValueError, "m: got 129, expected 1 to 128 in a batch"),
        (lambda: RectangularBatch(a, 3, 5, 4, Layout.canonical("row")), ValueError, "data: got shape .*expected a"),
        (lambda: lstsq(RectangularBatch.from_dense(a[:, :2]), b[:, :2]), ValueError, "a: got shape .*as many rows"),
        (lambda: cholesky(RectangularBatch.from_dense(a)), TypeError, "got a RectangularBatch, expected an array"),
        (lambda: ormqr(qr(a, "raw"), b[:, :4]), ValueError, r"b: got shape \(4, 4, 2\), expected \(5,\)"),
        (lambda: lstsq(a.swapaxes(1, 2), b), ValueError, "a: got shape .*at least as many rows as columns"),
        (lambda: lstsq(a, b[:, :4]), ValueError, r"b: got shape \(4, 4, 2\), expected \(5,\)"),
        (lambda: lstsq(a, b.astype("f")), TypeError, "b: got dtype float32, expected float64"),
    ]
    for call, error, words in calls:
        with pytest.raises(error, match=f"^{words}"):
            call()


def test_on_a_gpu(cuda: Backend) -> None:
    check_calls("float32", ((2, 20, 4, 3), (33, 2, 3)), 3)
    with pytest.raises(ValueError, match=r"^a: got matrices of 8200 x 2, expected at most 8,192 rows"):
        lstsq(examples(2, 8200, 2), examples(2, 8200, 1), backend="cuda")
