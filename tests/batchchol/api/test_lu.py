"""LU factorizations and general matrices in the public calls: on the host, without a compiler, and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    Layout,
    get_backend,
    inv,
    inv_ex,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    slogdet,
    slogdet_ex,
    solve,
    solve_ex,
)
from batchchol.backends import Backend
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.operations.lu import FACTOR_BOUND, SOLVE_BOUND, factor_ratios, solve_ratios

from ...lu_runs import matrices, reference
from ..artifacts.test_no_compiler import bare, warned
from ..backends.cuda.test_batches import on_device

__all__ = ["bare", "warned"]

Array = NDArray[Any]
N, NRHS = 5, 3
LAYOUTS = [Layout.canonical(), Layout.canonical("col"), Layout.interleaved("row"), Layout.chunked(16)]


def system(*outer: int, n: int = N, dtype: str = "float32") -> tuple[Array, Array]:
    random = np.random.default_rng(n)
    a = matrices("normal", random, int(np.prod(outer)), n).reshape(*outer, n, n)
    return a.astype(dtype), random.standard_normal((*outer, n, NRHS)).astype(dtype)


def assert_factors(a: Array, lu: Array, pivots: Array) -> None:
    n = a.shape[-1]
    assert (
        factor_ratios(a.reshape(-1, n, n), lu.reshape(-1, n, n), pivots.reshape(-1, n)).max() <= FACTOR_BOUND["ieee"]
    )


def assert_solves(a: Array, b: Array, x: Array) -> None:
    n = a.shape[-1]
    whole = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    each = [np.broadcast_to(part, (*whole, *part.shape[-2:])).reshape(-1, *part.shape[-2:]) for part in (a, b)]
    assert x.shape == (*whole, n, b.shape[-1])
    assert solve_ratios(*each, x.reshape(each[1].shape)).max() <= SOLVE_BOUND["ieee"]


@pytest.mark.parametrize("n", [N, 40, 130])
def test_arrays(n: int) -> None:
    a, b = system(2, 7, n=n, dtype="float64")
    before = a.copy()
    lu, pivots = lu_factor(a)
    assert (pivots.shape, pivots.dtype) == ((2, 7, n), np.int32)
    assert_factors(a, lu, pivots)
    for columns in (b, b[0]):
        assert_solves(a, columns, solve(a, columns, assume_a="gen"))
        assert_solves(a, columns, lu_solve(lu, pivots, columns))
    for x in (solve(a, b[..., 0], assume_a="gen"), lu_solve(lu, pivots, b[..., 0])):
        assert_solves(a, b[..., :1], x[..., None])
    assert (a == before).all()
    room = np.empty_like(b)
    assert lu_solve(lu, pivots, b, out=room) is room
    assert lu_solve(lu, pivots, room, overwrite_b=True) is not None
    over = lu_factor(a, overwrite_a=True)
    assert np.shares_memory(over.LU, a)
    assert over.LU.tobytes() == lu.tobytes()


@pytest.mark.usefixtures("warned")
def test_arrays_without_a_compiler() -> None:
    test_arrays(N)
    batch = Batch.from_dense(system(5)[0], Layout.chunked(4))
    lu, pivots = lu_factor(batch)
    assert_factors(batch.to_dense(), lu.to_dense(), pivots)
    assert_solves(batch.to_dense(), system(5)[1], lu_solve(lu, pivots, system(5)[1]))
    assert_solves(batch.to_dense(), system(5)[1], solve(batch, system(5)[1], assume_a="gen"))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_batches(layout: Layout) -> None:
    a, b = system(37)
    batch = Batch.from_dense(a, layout)
    lu, pivots = lu_factor(batch)
    assert isinstance(lu, Batch)
    assert (lu.layout, lu.triangle) == (layout, None)
    assert_factors(a, lu.to_dense(), pivots)
    assert_solves(a, b, lu_solve(lu, pivots, b))
    assert_solves(a, b, solve(batch, b, assume_a="gen"))
    assert np.array_equal(batch.to_dense(), a)
    assert lu_factor(batch, overwrite_a=True).LU is batch
    assert np.array_equal(batch.to_dense(), lu.to_dense())


def test_inverses_and_determinants() -> None:
    a, _ = system(3, 4, dtype="float64")
    assert np.abs(inv(a, assume_a="gen") @ a - np.eye(N)).max() < 1e-10
    expected = np.linalg.slogdet(a)
    for given, shape in ((a, (3, 4)), (Batch.from_dense(a.reshape(12, N, N)), (12,))):
        sign, logabsdet = slogdet(given, assume_a="gen")
        assert np.array_equal(sign, expected.sign.reshape(shape))
        assert np.allclose(logabsdet, expected.logabsdet.reshape(shape), rtol=0, atol=1e-12)
    a[1, 2, :, 0] = 0
    sign, logabsdet = slogdet(a, assume_a="gen")
    assert (sign[1, 2], logabsdet[1, 2]) == (0, -np.inf)
    assert np.flatnonzero(inv_ex(a, assume_a="gen").info).tolist() == [6]


def test_singular_matrices() -> None:
    a, b = matrices("singular", np.random.default_rng(1), 10, N), np.ones((10, N))
    _, expected, _ = reference(a)
    found = lu_factor_ex(a)
    assert np.array_equal(found.info, expected)
    assert_factors(a, found.LU, found.pivots)
    assert np.array_equal(solve_ex(a, b, assume_a="gen").info, expected)
    assert np.array_equal(solve_ex(a, np.ones((N, 0)), assume_a="gen").info, expected)
    for call, instead in (
        (lambda: lu_factor(a[1:]), "lu_factor_ex"),
        (lambda: solve(a[1:], b[1:], assume_a="gen"), "solve_ex"),
        (lambda: inv(a[1:], assume_a="gen"), "inv_ex"),
    ):
        with pytest.raises(
            np.linalg.LinAlgError, match=f"^matrix 0 is singular: pivot 2 of its .*; {instead} returns"
        ):
            call()


def test_nothing() -> None:
    for shape in ((0, N, N), (3, 0, 0), (0, 0)):
        lu, pivots, info = lu_factor_ex(np.empty(shape))
        assert (lu.shape, pivots.shape, info.shape) == (shape, shape[:-1], shape[:-2])
        assert lu_solve(lu, pivots, np.empty((*shape[:-1], 2))).shape == (*shape[:-1], 2)


def test_what_is_refused() -> None:
    a, b = system(4)
    lu, pivots = lu_factor(a)
    triangle = Batch.from_dense(a).marked("lower")
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: solve(a, b, assume_a="gen", upper=True), ValueError, "upper: got True"),
        (lambda: solve(a, b, assume_a="gen", jitter="auto"), ValueError, "jitter: got 'auto'"),
        (lambda: lu_solve(lu, pivots - 1, b), ValueError, "pivots: got one that is out of range"),
        (lambda: lu_solve(lu, pivots[:2], b), ValueError, r"pivots: got shape \(2, 5\), expected \(4, 5\)"),
        (lambda: lu_solve(lu, pivots.astype("f"), b), TypeError, "pivots: got dtype float32"),
        (lambda: lu_factor(triangle), ValueError, "a: got one whose lower triangle alone has a meaning"),
        (lambda: lu_factor(a[..., :2]), ValueError, "a: got shape"),
        (lambda: lu_factor(a, overwrite_a=1), TypeError, "overwrite_a: got 1"),
        (lambda: lu_factor(a, stream=0), ValueError, "stream: got 0"),
    ]
    for call, error, words in calls:
        with pytest.raises(error, match=f"^{words}"):
            call()


def test_on_a_gpu(cuda: Backend) -> None:
    a, b = system(2, 20)
    for given in (a, on_device(a)):
        there = given is not a
        lu, pivots = lu_factor(given, backend="cuda")
        x = lu_solve(lu, pivots, on_device(b) if there else b, backend="cuda")
        y, info = solve_ex(given, on_device(b) if there else b, assume_a="gen", backend="cuda")
        lu, pivots, x, y, info = (cuda.host(each) if there else each for each in (lu, pivots, x, y, info))
        assert (pivots.shape, info.shape, info.any()) == ((2, 20, N), (2, 20), False)
        assert_factors(a, lu, pivots)
        assert_solves(a, b, x)
        assert_solves(a, b, y)
        sign, logabsdet, _ = slogdet_ex(given, assume_a="gen", backend="cuda")
        for one, other in zip((sign, logabsdet), np.linalg.slogdet(a), strict=True):
            assert np.allclose(cuda.host(one) if there else one, other, rtol=1e-4)
    batch = get_backend("cuda").from_dense(a[0], Layout.chunked(32))
    assert np.array_equal(cuda.host(slogdet_ex(batch, assume_a="gen").sign), np.linalg.slogdet(a[0])[0])
    singular, odd = np.zeros((2, N, N)), np.eye(N)[::-1]
    singular[1] = odd * 2
    sign, logabsdet, info = map(cuda.host, slogdet_ex(on_device(singular), assume_a="gen"))
    assert (sign.tolist(), logabsdet[0], info.tolist()) == ([0, round(np.linalg.det(odd))], -np.inf, [1, 0])
    lu, pivots, info = lu_factor_ex(batch)
    assert isinstance(lu, DeviceBatch)
    assert_factors(a[0], cuda.host(lu.to_dense()), cuda.host(pivots))
    assert_solves(a[0], b[0], cuda.host(lu_solve(lu, pivots, on_device(b[0]))))
    assert_solves(a[0], b[0], cuda.host(solve(batch, on_device(b[0]), assume_a="gen")))
    with pytest.raises(
        ValueError, match=r"^a: got matrices of order 8193, expected at most 8192 .* copy them to the host"
    ):
        lu_factor(on_device(np.empty((0, 8193, 8193))))
    with pytest.raises(TypeError, match=r"^pivots: got ndarray, expected an array on the GPU"):
        lu_solve(lu, cuda.host(pivots), on_device(b[0]))


def test_warps_that_share_a_matrix_solve_for_all_right_hand_sides(cuda: Backend) -> None:
    random = np.random.default_rng(3)
    a, b = random.standard_normal((3, 37, 37)), random.standard_normal((3, 37, 5))
    x, info = solve_ex(on_device(a), on_device(b), assume_a="gen")
    assert not cuda.host(info).any()
    assert_solves(a, b, cuda.host(x))
