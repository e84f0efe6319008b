"""Larger general matrices on a GPU: emulated kernels of panels, and a stand-in for cuBLAS's routines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from batchchol import get_backend, inv, lu_factor_ex, lu_solve, slogdet, solve_ex
from batchchol.algorithms import general
from batchchol.operations.lu import FACTOR_BOUND, SOLVE_BOUND, factor_ratios, solve_ratios

from ...fakes.cublas import FakeCublas, forget, install
from ...fakes.pycuda import FakeGpu
from ...lu_runs import reference
from ..backends.cuda.test_batches import on_device


@pytest.fixture
def fake_blas(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCublas]:
    yield install(monkeypatch, fake_gpu)
    forget()


@pytest.mark.parametrize(("dtype", "together"), [("float32", True), ("float64", False)])
def test_factors_and_solutions(
    fake_blas: FakeCublas, monkeypatch: pytest.MonkeyPatch, dtype: str, together: bool
) -> None:
    """Pivots are LAPACK's; of the last matrix, which is singular, the info is."""
    n, random, host = 135, np.random.default_rng(5), get_backend("cuda").host
    if not together:
        monkeypatch.setattr(general, "_ALONE", 130)
    a = random.standard_normal((3, n, n)).astype(dtype)
    a[1] *= np.exp2(random.integers(-12, 13, (n, 1)))
    a[2, :, 70] = 0
    b = random.standard_normal((3, n, 2)).astype(dtype)
    lu, pivots, info = map(host, lu_factor_ex(on_device(a)))
    expected, failed, _ = reference(a)
    assert np.array_equal(pivots, expected)
    assert info.tolist() == failed.tolist() == [0, 0, 71]
    assert factor_ratios(a, lu, pivots).max() <= FACTOR_BOUND["ieee"]
    x = host(lu_solve(on_device(lu[:2]), on_device(pivots[:2]), on_device(b[:2])))
    y, status = map(host, solve_ex(on_device(a[:2]), on_device(b[:2]), assume_a="gen"))
    assert not status.any()
    for solution in (x, y):
        assert solve_ratios(a[:2], b[:2], solution).max() <= SOLVE_BOUND["ieee"]
    names = {name[1:] for name, _ in fake_blas.calls}
    assert names == ({"gemmStridedBatched", "trsmBatched"} if together else {"gemm", "trsm"})


def test_calls_by_their_factors(fake_blas: FakeCublas) -> None:
    a, stream = np.random.default_rng(2).standard_normal((130, 130)), 0x77
    host = get_backend("cuda").host
    np.testing.assert_allclose(host(inv(on_device(a), assume_a="gen")), np.linalg.inv(a), rtol=1e-8, atol=1e-10)
    found, expected = slogdet(on_device(a), assume_a="gen"), np.linalg.slogdet(a)
    assert host(found.sign) == expected[0]
    np.testing.assert_allclose(host(found.logabsdet), expected[1])
    np.testing.assert_array_equal(lu_factor_ex(a, backend="cuda").pivots, lu_factor_ex(a).pivots)
    fake_blas.calls.clear()
    lu_factor_ex(on_device(a), stream=stream)
    assert {each for _, each in fake_blas.calls} == {stream}
