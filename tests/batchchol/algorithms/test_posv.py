"""Factoring and solving by two kernels of a GPU, in slices: emulated, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Layout, default_spec, get_backend, solve, solve_ex
from batchchol.algorithms.posv import FactorThenSolve, slices
from batchchol.backends import Backend
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.defaults.rules.fused import CHUNK_OF_FEW, COLUMNS_OF_WARPS
from batchchol.operations.posv import ratios
from batchchol.operations.potrs import ratio_bound

from ...fakes.pycuda import FakeGpu
from ..api.test_cho_solve import columns
from ..backends.cuda.test_batches import on_device

Array = NDArray[Any]
Spd = Callable[..., Array]

N, BATCH = 9, 150


def both(backend: Backend, layout: Layout, *, matrices: int, n: int = N) -> FactorThenSolve:
    """The default kernels, with a workspace for the factors of `matrices`."""
    where: dict[str, Any] = {"target": "cuda", "layout": layout.kind, "order": layout.order, "chunk": layout.chunk}
    factor, solver = (cast(Any, backend.kernel(default_spec(n, op=op, **where))) for op in ("potrf", "potrs"))
    return FactorThenSolve(factor, solver, matrices * 4 * n * n)


def info_of(backend: Backend, a: DeviceBatch) -> Any:
    return backend.info(a, cast(Any, None))


LAYOUTS = (Layout.canonical(), Layout.interleaved(), Layout.chunked(32), Layout.chunked(5))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_slices_solve_what_the_whole_does(cuda: Backend, spd: Spd, layout: Layout) -> None:
    """To the last bit, with a matrix that fails in one of them."""
    a, b = spd(BATCH, N), columns(BATCH, N, 3)
    a[77, 4, 4] = -1
    good = np.arange(BATCH) != 77
    found = []
    for matrices in (BATCH, 40):
        kernel, batch = both(cuda, layout, matrices=matrices), DeviceBatch.from_dense(a, layout)
        room, info = on_device(np.full_like(b, -7)), info_of(cuda, batch)
        kernel(batch, on_device(b), room, info, threads=1)
        x = cuda.host(room)
        assert ratios(a[good], b[good], x[good]).max() <= ratio_bound(N, "ieee")
        assert np.flatnonzero(cuda.host(info)).tolist() == [77]
        assert cuda.host(info)[77] == 5
        found.append(x[good].tobytes())
    assert found[0] == found[1]


def test_solutions_in_place_of_right_hand_sides_on_another_stream(fake_gpu: FakeGpu, spd: Spd) -> None:
    backend, a, b = get_backend("cuda"), spd(70, N), columns(70, N, 2)
    batch, there = DeviceBatch.from_dense(a, Layout.chunked(32)), on_device(b)
    kernel, info = both(backend, batch.layout, matrices=32), info_of(backend, batch)
    del fake_gpu.launches[:]
    kernel(batch, there, there, info, threads=1, stream=0x77)
    assert [launch[2] for launch in fake_gpu.launches] == [0x77] * 6
    assert ratios(a, b, backend.host(there)).max() <= ratio_bound(N, "ieee")
    # The stream still uses the workspace, which has room for one slice.
    assert info.workspace.nbytes == 32 * N * N * 4


@pytest.mark.parametrize(
    ("layout", "batch", "step"),
    [
        (Layout.chunked(32), 1_000, 128),
        (Layout.chunked(32), 100, 128),
        (Layout.chunked(32), 129, 96),
        (Layout.chunked(48), 1_000, 96),
        (Layout.chunked(5), 1_000, 160),
        (Layout.canonical(), 1_000, 128),
        (Layout.interleaved(), 1_000, 1_000),
    ],
    ids=str,
)
@pytest.mark.usefixtures("fake_gpu")
def test_a_slice_fits_the_workspace(layout: Layout, batch: int, step: int) -> None:
    """As whole chunks, and slices of one size, allow."""
    kernel = both(get_backend("cuda"), layout, matrices=128)
    assert kernel.step(batch, layout) == step
    assert replace(kernel, workspace_bytes=batch * N * N * 8).step(batch, layout) >= batch
    parts = list(slices(batch, step))
    assert parts[0][0] == 0
    assert sum(size for _, size in parts) == batch
    assert all(first + size == after for (first, size), (after, _) in pairwise(parts))


@pytest.mark.parametrize("upper", [False, True])
def test_larger_orders_are_solved_by_two_kernels(cuda: Backend, spd: Spd, upper: bool) -> None:
    n = 33
    a, b = spd(33, n), columns(33, n, 2)
    a[3, 1, 1] = np.nan
    good = np.arange(33) != 3
    for given in (on_device(a), DeviceBatch.from_dense(a, Layout.chunked(32))):
        x, info = solve_ex(given, on_device(b), upper=upper)
        assert np.flatnonzero(cuda.host(info)).tolist() == [3]
        assert ratios(a[good], b[good], cuda.host(x)[good]).max() <= ratio_bound(n, "ieee")
    x = solve(on_device(a[good]), on_device(b[good, :, 0].copy()))
    assert ratios(a[good], b[good, :, :1], cuda.host(x)[..., None]).max() <= ratio_bound(n, "ieee")


@pytest.mark.parametrize(("layout", "nrhs"), [(Layout.canonical(), 1), (Layout.chunked(32), 5)], ids=str)
def test_many_matrices_are_solved_by_blocks(cuda: Backend, spd: Spd, layout: Layout, nrhs: int) -> None:
    n, batch = 33, 4_101
    a, b = spd(batch, n), columns(batch, n, nrhs)
    a[[3, 4_099], 30, 30] = -1
    good = np.setdiff1d(np.arange(batch), [3, 4_099])
    given = on_device(a) if layout == Layout.canonical() else DeviceBatch.from_dense(a, layout)
    x, info = solve_ex(given, on_device(b))
    assert np.flatnonzero(cuda.host(info)).tolist() == [3, 4_099]
    assert set(cuda.host(info)[[3, 4_099]]) == {31}
    assert ratios(a[good], b[good], cuda.host(x)[good]).max() <= ratio_bound(n, "ieee")


def test_warps_solve_for_few_right_hand_sides(fake_gpu: FakeGpu, spd: Spd) -> None:
    """By arrays, and few matrices by chunks; `whole` for more right-hand sides, and two kernels by large chunks."""
    n, few = 65, COLUMNS_OF_WARPS
    a, arrays, chunks, large = spd(5, n), Layout.canonical(), Layout.chunked(CHUNK_OF_FEW), Layout.chunked(64)
    for layout, nrhs, kernels in ((arrays, few, 1), (chunks, 1, 1), (arrays, few + 1, 1), (large, 1, 2)):
        given = on_device(a) if layout == arrays else DeviceBatch.from_dense(a, layout)
        b = columns(5, n, nrhs)
        del fake_gpu.launches[:]
        x, info = solve_ex(given, on_device(b))
        assert len(fake_gpu.launches) == kernels
        assert not get_backend("cuda").host(info).any()
        assert ratios(a, b, get_backend("cuda").host(x)).max() <= ratio_bound(n, "ieee")
