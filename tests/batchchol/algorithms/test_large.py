"""Larger matrices on a GPU: emulated kernels, and a stand-in for cuBLAS's routines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Layout,
    cho_solve,
    cholesky,
    cholesky_ex,
    factor,
    get_backend,
    inv,
    slogdet,
    solve,
    solve_ex,
)
from batchchol.algorithms import large
from batchchol.algorithms.blocked import Blocking
from batchchol.algorithms.device_calls import DeviceCalls
from batchchol.algorithms.graphs import FactorizationGraph
from batchchol.algorithms.level3 import Block
from batchchol.algorithms.plans import Plan
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.errors import BatchcholError, OutOfMemory
from batchchol.operations.residual import ratios
from kernelgen.emit.panels.fused_panel import FusedPanel
from kernelgen.emit.panels.panel import Panel

from ...fakes.cublas import FakeCapture, FakeCublas, forget, install
from ...fakes.pycuda import FakeGpu
from ..backends.cuda.test_batches import on_device

Array = NDArray[Any]
Spd = Callable[..., Array]

# Of three tiles: two and one, the two once more.
HALVES = ("dsyrk", "dgemm", "dsyrk", "dgemm", "dsyrk")


@pytest.fixture
def fake_blas(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCublas]:
    yield install(monkeypatch, fake_gpu)
    forget()


def planned(dtype: str, upper: bool, looking: str = "right", nb: int = 64) -> Plan:
    """Of small tiles, that emulating takes little time."""
    panel = Panel(dtype, "col" if upper else "row", 32, rows=16, threads=64, row_threads=64)
    return Plan(panel, Blocking(32, nb, looking))


def fused(upper: bool) -> FusedPanel:
    return FusedPanel("float32", "col" if upper else "row", 32, ib=16, lb=8, threads=64)


def stored(l: Array, upper: bool) -> Array:
    """Lower factors."""
    return l.swapaxes(-1, -2) if upper else l


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(
    ("dtype", "batch", "n", "looking"), [("float32", (2, 2), 139, "right"), ("float64", (), 100, "left")]
)
def test_blocks(
    fake_blas: FakeCublas, spd: Spd, dtype: str, batch: tuple[int, ...], n: int, looking: str, upper: bool
) -> None:
    """Factors, zeros in the other triangle, which is not read, and info; the input is left as it was."""
    a = spd(*batch, n, dtype=dtype)
    given = np.where(np.tri(n, dtype=bool).T if upper else np.tri(n, dtype=bool), a, np.nan).astype(dtype)
    bad = given.copy()
    if batch:
        bad[1, 0, 70, 70] = -1
    array = on_device(bad)
    l, info = large.factor_device(memory.view(array), upper, planned(dtype, upper, looking))
    found, status = get_backend("cuda").host(l), get_backend("cuda").host(info)
    np.testing.assert_array_equal(get_backend("cuda").host(array), bad)
    assert status.shape == batch
    assert status.ravel().tolist() == ([0, 0, 71, 0] if batch else [0])
    good = stored(found, upper)[status == 0].reshape(-1, n, n)
    assert ratios(a[status == 0].reshape(-1, n, n), good).max() <= 1.5
    np.testing.assert_array_equal(good, np.tril(good))
    batched = {name[1:] for name, _ in fake_blas.calls}
    assert batched == ({"gemmStridedBatched"} if batch else {"gemm", "syrk"})


def test_look_ahead_is_on_another_stream(fake_blas: FakeCublas, fake_gpu: FakeGpu, spd: Spd) -> None:
    a, how = spd(1, 150), planned("float32", False)
    how = Plan(how.panel, Blocking(32, 32, ahead=True))
    l, info = large.factor_device(memory.view(on_device(a)), False, how)
    assert not get_backend("cuda").host(info).any()
    assert ratios(a, get_backend("cuda").host(l)).max() <= 1.5
    assert {stream for _, stream in fake_blas.calls} == {0}
    panels = [stream for name, _, stream in fake_gpu.launches if "potf2" in name]
    assert panels == [0] + [0x6000] * 4
    assert fake_gpu.waits == [(0, 0x6000), (0x6000, 0)] * 4


def test_look_ahead_as_a_graph(fake_blas: FakeCublas, fake_gpu: FakeGpu, spd: Spd) -> None:
    """Captured from a stream of its own and the panels', where cuBLAS is called itself; a launch is one call."""
    a = on_device(spd(1, 150))
    l, info = memory.empty(a.shape, a.dtype, "factors"), memory.info_array(1)
    addresses = int(a.gpudata), int(l.gpudata), int(info.gpudata)
    how = Plan(fused(False), Blocking(32, 64, ahead=True, fused=True), blocks=1)
    graph = FactorizationGraph(device(), how, *addresses, 150, 1)
    fake_gpu.launches.clear()
    graph.launch()
    graph.launch()
    assert FakeCapture.launched == [0, 0]
    assert fake_gpu.launches == []
    assert {stream for _, stream in fake_blas.calls} == {0, 0xCA97, 0x6000}
    assert ratios(get_backend("cuda").host(a), get_backend("cuda").host(l)).max() <= 1.5
    with pytest.raises(ValueError, match=r"how: got 'hybrid.*expected a plan that the GPU does by"):
        FactorizationGraph(device(), replace(how, hybrid=True), *addresses, 150, 1)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_panels_on_the_host(fake_blas: FakeCublas, spd: Spd, upper: bool, bad: float) -> None:
    """Of each matrix by itself: info, columns to the one that fails and zeros are as without the host."""
    a = spd(4, 70, dtype="float64")
    for member, k in ((1, 6), (2, 70)):
        a[member, k - 1, k - 1] = bad
    a[2, 40, 40] = bad
    panel = Panel("float64", "col" if upper else "row", 32, threads=64, row_threads=64)
    blocking, found = Blocking(32, 32, "left"), []
    for hybrid in (False, True):
        l, info = large.factor_device(memory.view(on_device(a)), upper, Plan(panel, blocking, hybrid=hybrid))
        assert get_backend("cuda").host(info).tolist() == [0, 6, 41, 0]
        found.append(stored(get_backend("cuda").host(l), upper))
    for member, columns in ((0, 70), (1, 5), (2, 40), (3, 70)):
        for l in found:
            np.testing.assert_allclose(l[member, :, :columns], found[0][member, :, :columns], rtol=1e-12, atol=1e-14)
    assert np.isfinite(found[1]).all()
    assert {name for name, _ in fake_blas.calls} >= {"dsyrk", "dgemm", "dtrsm"}


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_fused_panels(fake_blas: FakeCublas, fake_gpu: FakeGpu, spd: Spd, upper: bool, ahead: bool) -> None:
    """A launch to each, beside the updates if they are factored ahead; nothing else makes tiles.

    Matrices fail in every launch, at its first column and at its last.
    """
    minors = [1, 32, 33, 64, 65, 96, 97, 128, 129, 150]
    a = spd(1 + len(minors), 150)
    good = np.linalg.cholesky(a.astype(np.float64))
    for member, k in enumerate(minors, start=1):
        a[member, k - 1, k - 1] = (-1.0, np.nan, 0.0)[member % 3]
    how = Plan(fused(upper), Blocking(32, 64, ahead=ahead, fused=True), blocks=2)
    l, info = large.factor_device(memory.view(on_device(a)), upper, how)
    assert get_backend("cuda").host(info).tolist() == [0, *minors]
    found = stored(get_backend("cuda").host(l), upper)
    np.testing.assert_array_equal(found[0], np.tril(found[0]))
    for member, columns in enumerate([150, *(k - 1 for k in minors)]):
        np.testing.assert_allclose(found[member, :, :columns], good[member, :, :columns], rtol=1e-4, atol=1e-4)
    panels = [stream for name, _, stream in fake_gpu.launches if "panel" in name]
    assert panels == [0] * 5 if not ahead else [0, 0, 0x6000, 0x6000, 0x6000]
    assert len(fake_gpu.launches) == 6


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("border", [False, True])
def test_whole_matrices_in_one_launch(fake_gpu: FakeGpu, spd: Spd, upper: bool, border: bool) -> None:
    """But for a border: six rows behind two tiles."""
    a, minors = spd(4, 70), [30, 65, 70]
    for member, k in enumerate(minors, start=1):
        a[member, k - 1, k - 1] = -1
    given = np.where(np.tri(70, dtype=bool).T if upper else np.tri(70, dtype=bool), a, np.nan).astype(np.float32)
    array = on_device(given)
    l, info = large.factor_device(memory.view(array), upper, Plan(fused(upper), None, blocks=2, border=border))
    np.testing.assert_array_equal(get_backend("cuda").host(array), given)
    found = stored(get_backend("cuda").host(l), upper)
    assert get_backend("cuda").host(info).tolist() == [0, *minors]
    assert ratios(a[:1], found[:1]).max() <= 1.5
    np.testing.assert_array_equal(found, np.tril(found))
    assert len(fake_gpu.launches) == 1 + border


def test_large_ones_are_factored_one_by_one(fake_blas: FakeCublas, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "ALONE", 99)
    a = spd(2, 100)
    a[1, 40, 40] = np.nan
    l, info = large.factor_device(memory.view(on_device(a)), False, planned("float32", False))
    assert get_backend("cuda").host(info).tolist() == [0, 41]
    assert ratios(a[:1], get_backend("cuda").host(l)[:1]).max() <= 1.5
    assert {name for name, _ in fake_blas.calls} == {"sgemm", "ssyrk"}


@pytest.mark.usefixtures("fake_blas")
def test_batches_on_a_gpu(spd: Spd) -> None:
    """They lie in rows; parts go in and out, and triangles that have no meaning read as zeros."""
    a, gpu = spd(3, 130), get_backend("cuda")
    batch = gpu.from_dense(a)
    batch.put(1, on_device(2 * a[:1]))
    a[1] = 2 * a[0]
    np.testing.assert_array_equal(gpu.host(batch.get(1, 3)), a[1:])
    np.testing.assert_array_equal(gpu.host(batch.marked("upper").get(1, 3)), np.triu(a[1:]))
    np.testing.assert_array_equal(gpu.host(batch.marked("lower").to_dense()), np.tril(a))
    for out in (None, batch):
        l, info = factor(batch, out=out)
        assert not gpu.host(info).any()
        assert l.triangle == "lower"
        assert ratios(a, gpu.host(l.to_dense())).max() <= 1.5
    b = np.random.default_rng(1).random((3, 130), np.float32)
    for triangle, jitter in ((None, None), ("upper", None), ("lower", 1e-6)):
        given = gpu.from_dense(a).marked(triangle)
        x, info, *added = solve_ex(given, on_device(b), upper=triangle == "upper", jitter=jitter)
        assert not gpu.host(info).any()
        assert len(added) == (jitter is not None)
        np.testing.assert_allclose(gpu.host(x), solve(a, b), rtol=1e-4)
        np.testing.assert_array_equal(
            gpu.host(given.to_dense()), gpu.host(gpu.from_dense(a).marked(triangle).to_dense())
        )
    np.testing.assert_allclose(gpu.host(cho_solve(l, on_device(b))), solve(a, b), rtol=1e-4)
    with pytest.raises(ValueError, match="stream: got one for matrices of order 130, expected None above 128"):
        factor(batch, stream=0x77)
    with pytest.raises(ValueError, match="layout: got interleaved-col for matrices of order 130, expected"):
        gpu.empty(130, 2, Layout.interleaved())


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.usefixtures("fake_gpu")
def test_a_tile_needs_no_cublas(spd: Spd, upper: bool) -> None:
    a = spd(2, 129)
    a[1, 128, 128] = -1
    for given in (a, on_device(a)):
        l, info = cholesky_ex(given, backend="cuda", upper=upper)
        found, status = (np.asarray(each.get() if hasattr(each, "get") else each) for each in (l, info))
        assert status.tolist() == [0, 129]
        assert ratios(a[:1], stored(found, upper)[:1]).max() <= 1.5
        np.testing.assert_array_equal(stored(found, upper)[0], np.tril(stored(found, upper)[0]))


@pytest.mark.parametrize("upper", [False, True])
def test_solutions(fake_blas: FakeCublas, spd: Spd, upper: bool) -> None:
    a, b = spd(2, 130, dtype="float64"), np.random.default_rng(1).random((2, 130, 3))
    host = get_backend("cuda").host
    expected = np.linalg.solve(a, b)
    np.testing.assert_allclose(host(solve(on_device(a), on_device(b), upper=upper)), expected, rtol=1e-10)
    np.testing.assert_allclose(solve(a, b[..., 0], backend="cuda", upper=upper), expected[..., 0], rtol=1e-10)
    l = cholesky(on_device(a), upper=upper)
    np.testing.assert_allclose(host(cho_solve(l, on_device(b), upper=upper, stream=0x77)), expected, rtol=1e-10)
    assert fake_blas.calls[-2:] == [("dtrsmBatched", 0x77)] * 2
    np.testing.assert_allclose(host(cho_solve(l[:1], on_device(b[:1]), upper=upper)), expected[:1], rtol=1e-10)
    assert fake_blas.calls[-2:] == [("dtrsm", 0)] * 2
    np.testing.assert_allclose(host(inv(on_device(a))), np.linalg.inv(a), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(inv(a, backend="cuda"), np.linalg.inv(a), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(slogdet(a, backend="cuda", upper=upper).logabsdet, np.linalg.slogdet(a)[1], rtol=1e-12)
    np.testing.assert_allclose(host(slogdet(on_device(a)).logabsdet), np.linalg.slogdet(a)[1], rtol=1e-12)


@pytest.mark.usefixtures("fake_gpu")
def test_without_cupy_larger_ones_say_what_to_do(spd: Spd) -> None:
    forget()
    a, b = spd(2, 130), np.ones((2, 130), np.float32)
    assert ratios(a, cholesky(a, backend="cuda")).max() <= 1.5
    for given in ((a, b), (on_device(a), on_device(b))):
        with pytest.raises(BatchcholError, match=r"solving larger .* a GPU needs cupy.*\.\[large\].*backend='cpu'"):
            solve(*given, backend="cuda")


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.usefixtures("fake_gpu")
def test_what_is_not_square_is_refused(there: bool) -> None:
    for shape in ((130, 131), (2, 300, 299), (1100,)):
        a = np.ones(shape, np.float32)
        with pytest.raises(ValueError, match="square") as caught:
            cholesky(on_device(a) if there else a, backend="cuda")
        assert f"a: got shape {shape}" in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bad_ones_on_the_host(spd: Spd, dtype: str) -> None:
    """NaN, zero and negative pivots, first and last, harm no other matrix."""
    a, minors = spd(5, 260, dtype=dtype), [1, 129, 200, 260]
    expected = cholesky(a)
    for member, k in enumerate(minors):
        a[member, k - 1, k - 1] = (-1.0, np.nan, 0.0)[member % 3]
    l, info = cholesky_ex(a)
    assert info.tolist() == [*minors, 0]
    np.testing.assert_array_equal(l[4], expected[4])
    for member, k in enumerate(minors):
        np.testing.assert_allclose(l[member, :, : k - 1], expected[member, :, : k - 1], rtol=1e-4, atol=1e-4)


def test_no_memory(fake_blas: FakeCublas, fake_gpu: FakeGpu, spd: Spd) -> None:
    """For the factors, or for cuBLAS's workspace: the bytes that are needed and those that are free are named."""
    array, total = on_device(spd(300)), fake_gpu.total
    fake_gpu.total = fake_gpu.used
    with pytest.raises(
        OutOfMemory, match=r"room for the factors of 1 matrices of order 300, .* needs [\d,]+ bytes and"
    ):
        cholesky(array)
    fake_gpu.total, fake_blas.status = total, 3
    with pytest.raises(
        OutOfMemory, match=r"cuBLAS's workspace, on the GPU, needs 33,554,432 bytes and [\d,]+ bytes are"
    ):
        solve(array, on_device(np.ones(300, np.float32)))


def test_blocks_of_threads_share_the_gpu(fake_gpu: FakeGpu, spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many to each matrix as there is room for, but not more than one for four tiles, at least one."""
    counts = []
    monkeypatch.setattr(device(), "multiprocessors", 3)
    for batch, n in ((1, 40), (1, 130), (3, 130), (5, 70)):
        fake_gpu.launches.clear()
        large.factor_device(memory.view(on_device(spd(batch, n))), False, Plan(fused(False), None))
        counts.append(fake_gpu.launches[0][1] // batch)
    assert counts == [1, 3, 2, 1]


def test_large_updates_are_halved(fake_blas: FakeCublas, spd: Spd) -> None:
    """Below the diagonal they are products."""
    a, panel, made = spd(1, 128, dtype="float64"), planned("float64", False).panel, []
    for least in (999, 64):
        array = on_device(a)
        calls = DeviceCalls(device(), panel, int(array.gpudata), 0, 128, 1, least_halved=least)
        calls.syrk(Block(32, 32, 96, 96), Block(32, 0, 96, 32))
        made.append(get_backend("cuda").host(array))
    assert [name for name, _ in fake_blas.calls] == ["dsyrk", *HALVES]
    np.testing.assert_allclose(made[1], made[0], rtol=1e-13)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.usefixtures("fake_blas")
def test_larger_ones_are_repaired(spd: Spd, upper: bool) -> None:
    """Those that fail alone; what is added, and whom it helps, is as on the host."""
    a, b, host = spd(3, 129, dtype="float64"), np.random.default_rng(1).random((3, 129)), get_backend("cuda").host
    for member, small in ((1, -1e-4), (2, -1e4)):
        a[member, 5, :] = a[member, :, 5] = 0
        a[member, 5, 5] = small
    expected = cholesky_ex(a, jitter=1e-5, upper=upper)
    assert expected.info.tolist() == [0, 0, 6]
    there = on_device(a)
    found = [host(each) for each in cholesky_ex(there, jitter=1e-5, upper=upper)]
    np.testing.assert_array_equal(host(there), a)
    np.testing.assert_array_equal(found[1], expected.info)
    np.testing.assert_allclose(found[2], expected.added, rtol=1e-12)
    np.testing.assert_allclose(found[0][:2], expected.L[:2], rtol=1e-9, atol=1e-9)
    solution = solve_ex(there, on_device(b), jitter=1e-5, upper=upper)
    np.testing.assert_array_equal(host(solution.info), expected.info)
    np.testing.assert_allclose(host(solution.added), expected.added, rtol=1e-12)
    np.testing.assert_allclose(host(solution.x)[:2], solve_ex(a, b, jitter=1e-5, upper=upper).x[:2], rtol=1e-7)
