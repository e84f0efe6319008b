"""The comparison of larger orders: this library's call, and cuSOLVER's routines, on stacks of matrices."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from batchchol.algorithms import plans
from batchchol.algorithms.blocked import Blocking
from batchchol.backends import Backend, get_backend
from batchchol.compare import comparison, large
from batchchol.compare.comparison import compare
from batchchol.compare.contenders import Contender
from batchchol.compare.large import LargeArena
from batchchol.compare.peers import cusolver
from batchchol.errors import ResidualError
from batchchol.measure import stopwatch
from batchchol.operations.roofline import Ceilings
from kernelgen.emit.panels.panel import Panel

from ...fakes import cublas as fake_cublas
from ...fakes.pycuda import FakeGpu
from .test_gpu_peers import floats

N, BATCH = 130, 2


def calls() -> ModuleType:
    """CuPy's cusolver, which factors as LAPACK does; what is above the factor stays."""
    library = ModuleType("cupy_backends.cuda.libs.cusolver")

    def one(mode: int, n: int, a: int, lda: int, info: int) -> None:
        assert lda == n
        columns = floats(a, n * n, "float64").reshape(n, n).T
        l = np.linalg.cholesky(columns)
        kept = np.triu_indices(n) if mode else np.tril_indices(n)
        columns[kept] = (l.T if mode else l)[kept]
        floats(info, 1, "int32")[:] = 0

    def dpotrf(handle: int, mode: int, n: int, a: int, lda: int, work: int, elements: int, info: int) -> None:
        one(mode, n, a, lda, info)

    def batched(handle: int, mode: int, n: int, pointers: int, lda: int, info: int, batch: int) -> None:
        for member, address in enumerate(floats(pointers, batch, "uint64")):
            one(mode, n, int(address), lda, info + 4 * member)

    library.__dict__.update(
        create=lambda: 77,
        setStream=lambda *_: None,
        dpotrf=dpotrf,
        dpotrf_bufferSize=lambda *_: 1,
        dpotrfBatched=batched,
    )
    return library


@pytest.fixture
def backend(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Backend:
    found, library = get_backend("cuda"), calls()
    monkeypatch.setattr(type(found), "last_level_cache_bytes", lambda self: N * N * 8 * BATCH // 2)
    monkeypatch.setitem(sys.modules, library.__name__, library)
    for cached in (cusolver._library, cusolver._handle):
        monkeypatch.setattr(cusolver, cached.__name__, cached.__wrapped__)
    return found


def test_cusolver_in_both_fill_modes_one_by_one_and_all_at_once(backend: Backend) -> None:
    arena = LargeArena(backend, "diagonally_dominant", N, BATCH, "float64")
    ways = cusolver.contenders(arena)
    assert [way.spec for way in ways] == [
        "cusolverDnDpotrfbatched, lower, in place",
        "cusolverDnDpotrfbatched, upper, in place",
        "cusolverDnDpotrf, lower, in place",
        "cusolverDnDpotrf, upper, in place",
    ]
    for way in ways:
        assert way.restore is not None
        way.restore()
        for index, call in enumerate(way.calls):
            call()
            assert 0 < arena.verify(way, index) <= 1.5
        assert len(way.calls) == arena.sets == 2


def test_this_library_takes_part_by_its_call(backend: Backend) -> None:
    arena = LargeArena(backend, "wishart", N, BATCH, "float64", cold=False)
    (entrant,) = large.entrants(backend, comparison.GpuVenue(backend), N, BATCH, "float64")
    (way,) = entrant.make(arena)
    assert (entrant.name, way.spec) == ("cholesky_ex", plans.plan(N, BATCH, "float64", upper=False).name)
    way.calls[0]()
    assert 0 < arena.verify(way, 0) <= 1.5
    info = backend.place(np.array([0, 3], np.int32))
    with pytest.raises(ResidualError, match="matrix 1 has info 3"):
        arena.verify(Contender("", way.calls, lambda index: arena.result(index, info=info)), 0)


def test_ways_take_part_if_asked(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that may be chosen; each gets a small batch right before the fastest is timed."""
    hows = plans.ways(N, BATCH, "float64")
    assert len(hows) == len(set(hows)) > 20
    monkeypatch.setattr(large, "ways", lambda *_: [hows[0], hows[-1]])
    arena = LargeArena(backend, "wishart", N, BATCH, "float64", cold=False)
    _, entrant = large.entrants(backend, comparison.GpuVenue(backend), N, BATCH, "float64", searched=True)
    found = entrant.make(arena)
    assert [way.spec for way in found] == [hows[0].name, hows[-1].name]
    for way in found:
        way.calls[0]()
        assert 0 < arena.verify(way, 0) <= 1.5


def test_hybrids_and_graphs_take_part_for_one_matrix(
    backend: Backend, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cublas.install(monkeypatch, fake_gpu)
    ahead = plans.Plan(Panel("float64", "row", 32, threads=64), Blocking(32, 64, ahead=True))
    monkeypatch.setattr(large, "ways", lambda *_: [ahead])
    monkeypatch.setattr(large, "hybrids", lambda n, dtype: plans.hybrids(n, dtype)[:1])
    arena = LargeArena(backend, "wishart", 512, 1, "float64", cold=False)
    _, hybrid, graph = large._ways(arena)
    assert (hybrid.spec, hybrid.protocols) == ("hybrid, left looking, nb = 128 on the host", ("single",))
    assert graph.spec == f"{ahead.name}, as a graph"
    for way in (hybrid, graph):
        way.calls[0]()
        assert 0 < arena.verify(way, 0) <= 1.5
    fake_cublas.forget()


def test_rows_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("cpu")
    monkeypatch.setattr(type(backend), "ceilings", lambda *_: Ceilings(1e10, 1e11, 1, "float64", "avx2"))
    monkeypatch.setattr(type(backend), "last_level_cache_bytes", lambda self: 1)
    settings: dict[str, Any] = {"ns": (N,), "sizes": ("2",), "threads": (1,), "samples": 2, "dtype": "float64"}
    (row,) = compare(backend, (), report=lambda line: None, **settings).rows
    assert (row.contender, row.spec, row.n, row.batch) == ("batchchol cholesky", "LAPACK", N, 2)
    assert 0 < row.ratio <= 1.5
    with pytest.raises(ValueError, match="n: got 129, expected 1 to 128"):
        compare(backend, (), op="potrs", ns=(129,), report=lambda line: None)


def test_samples_of_a_way_to_factor(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "WARM_UP_SAMPLES", 0)
    sample = large.sample_large(N, BATCH, dtype="float64", ib=8, threads=64, samples=1, protocol="single")
    assert (len(sample.seconds), sample.protocol) == (1, "single")
    assert 0 < sample.ratio <= 1.5
    with pytest.raises(ValueError, match="n: got 128, expected at least 129"):
        large.sample_large(128)


def test_samples_of_a_launch(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "WARM_UP_SAMPLES", 0)
    options: dict[str, Any] = {"nb": 32, "lb": 8, "threads": 64, "blocks": 2, "update": "fma"}
    sample = large.sample_fused(N, BATCH, dtype="float64", samples=1, protocol="single", **options)
    assert 0 < sample.ratio <= 1.5
    with pytest.raises(ValueError, match="n: got 128, expected at least 129"):
        large.sample_fused(128)


@pytest.mark.parametrize("graph", [False, True])
def test_samples_of_panels(graph: bool, backend: Backend, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "WARM_UP_SAMPLES", 0)
    fake_cublas.install(monkeypatch, fake_gpu)
    options: dict[str, Any] = {"looking": "right", "ahead": True, "columns": 128, "width": 64, "graph": graph}
    sample = large.sample_panels(200, samples=1, protocol="single", **options)
    assert 0 < sample.ratio <= 1.5
    fake_cublas.forget()
