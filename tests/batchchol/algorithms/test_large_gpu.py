"""Larger matrices on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import cholesky_ex, get_backend
from batchchol.algorithms import large
from batchchol.algorithms.blocked import Blocking
from batchchol.algorithms.plans import Plan
from batchchol.backends.cuda import memory
from batchchol.operations.residual import ratios
from kernelgen.emit.panels.panel import Panel

from ..backends.cuda.test_batches import on_device
from .test_large import stored

Array = NDArray[Any]
Spd = Callable[..., Array]

TOLERANCE = {"float32": 2e-5, "float64": 1e-13}


@pytest.mark.gpu
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "batch"), [(129, 300), (192, 3), (257, 40), (1000, 3), (1500, 2)])
def test_any_order_on_a_gpu(n: int, batch: int, dtype: str, upper: bool, spd: Spd) -> None:
    """In every panel a matrix fails, as far as there are enough."""
    pytest.importorskip("cupy")
    a, host = spd(batch, n, dtype=dtype), get_backend("cuda").host
    minors = [n, n // 2, 128, 129, 1, n - 1][: batch - 1]
    bad = a.copy()
    for member, k in enumerate(minors):
        bad[member, k - 1, k - 1] = (-1.0, np.nan, 0.0)[member % 3]
    l, info = cholesky_ex(on_device(bad), upper=upper)
    assert host(info).tolist() == minors + [0] * (batch - len(minors))
    found = stored(host(l), upper)
    assert ratios(a[len(minors) :], found[len(minors) :]).max() <= 1.5
    np.testing.assert_array_equal(found, np.tril(found))
    good = np.linalg.cholesky(a[: len(minors)].astype(np.float64))
    for member, k in enumerate(minors):
        np.testing.assert_allclose(found[member, :, : k - 1], good[member, :, : k - 1], atol=TOLERANCE[dtype] * n)


@pytest.mark.gpu
@pytest.mark.parametrize("looking", ["left", "right", "ahead"])
def test_ways_to_factor_one_matrix_on_a_gpu(looking: str, spd: Spd) -> None:
    pytest.importorskip("cupy")
    a = spd(1, 1111)
    ahead = looking == "ahead"
    how = Plan(Panel("float32", "row", 128), Blocking(128, 256, "right" if ahead else looking, ahead))
    l, info = large.factor_device(memory.view(on_device(a)), False, how)
    assert not get_backend("cuda").host(info).any()
    assert ratios(a, get_backend("cuda").host(l)).max() <= 1.5


@pytest.mark.gpu
def test_more_elements_than_32_bits_count_on_a_gpu() -> None:
    """Of a tridiagonal matrix, whose factor has two diagonals."""
    cupy = pytest.importorskip("cupy")
    n = 46_400
    if cupy.cuda.Device().mem_info[0] < 3 * 4 * n * n:
        pytest.skip(f"needs room for three matrices of order {n:,}")
    a, i = cupy.zeros((n, n), np.float32), cupy.arange(n)
    a[i, i], a[i[1:], i[:-1]] = 4, 1
    l, info = (cupy.asarray(each) for each in cholesky_ex(a))
    assert n * n > 2**31
    assert int(info) == 0
    diagonal, below = l[i, i], l[i[1:], i[:-1]]
    assert float(cupy.abs(diagonal[1:] ** 2 + below**2 - 4).max()) < 1e-5
    assert float(cupy.abs(below * diagonal[:-1] - 1).max()) < 1e-5
    assert int(cupy.count_nonzero(l)) == 2 * n - 1


@pytest.mark.gpu
def test_batches_of_more_elements_than_32_bits_count_on_a_gpu() -> None:
    """Of diagonal matrices, the last of which fails."""
    cupy = pytest.importorskip("cupy")
    n, batch = 129, 2**31 // 129**2 + 2
    if cupy.cuda.Device().mem_info[0] < 3 * 4 * batch * n * n:
        pytest.skip(f"needs room for three times {batch:,} matrices of order {n}")
    a, i = cupy.zeros((batch, n, n), np.float32), cupy.arange(n)
    a[:, i, i] = 4
    a[-1, 99, 99] = -1
    l, info = (cupy.asarray(each) for each in cholesky_ex(a))
    assert batch * n * n > 2**31
    assert int(cupy.count_nonzero(info)) == 1
    assert int(info[-1]) == 100
    assert bool((l[:-1, i, i] == 2).all())
    assert int(cupy.count_nonzero(l[:-1])) == (batch - 1) * n
