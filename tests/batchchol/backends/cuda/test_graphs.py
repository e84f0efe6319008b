"""Graphs of small batches: the bits of the calls, whatever runs first; what goes wrong harms nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, KernelSpec, Layout, Problem, ThreadSchedule, cholesky_ex, factor, get_backend
from batchchol.backends import Backend
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.graphs import Graph, record
from batchchol.errors import BackendUnavailable, DeviceError, DeviceLost, ResidualError
from batchchol.measure.graph_samples import record_calls

from ....fakes import cuda_bindings as fake_cuda_bindings
from ....fakes.cuda_bindings import FakeGraphs
from ....fakes.pycuda import ILLEGAL_ADDRESS, INVALID_VALUE, FakeGpu

Spd = Callable[..., NDArray[np.floating]]
# Three kernels, four batches, one of them ragged.
ORDERS, BATCHES = (3, 4, 7, 4), (40, 64, 33, 40)
CHUNKS = Layout.chunked(32)


@pytest.fixture
def fake_graphs(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    return fake_cuda_bindings.install(monkeypatch, fake_gpu)


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Backend:
    """The backend "cuda" with cuda-bindings: fakes of both, and real ones where there is a GPU."""
    if request.param == "emulated":
        request.getfixturevalue("fake_graphs")
    else:
        pytest.importorskip("cuda.bindings")
    return get_backend("cuda")


def spec_of(n: int, *, in_place: bool = False) -> KernelSpec:
    return KernelSpec(Problem(n, math="ieee"), "chunked", "col", ThreadSchedule(min(n, 2)), "cuda", in_place)


def packed(gpu: Backend, dense: NDArray[np.floating]) -> Any:
    return gpu.from_dense(dense, CHUNKS)


def make(gpu: Backend, spd: Spd, seed: int) -> list[Any]:
    return [
        packed(gpu, spd(batch, n, seed=seed + place))
        for place, (n, batch) in enumerate(zip(ORDERS, BATCHES, strict=True))
    ]


def bits(gpu: Backend, batch: Batch) -> NDArray[Any]:
    return gpu.host(batch.to_dense())


@pytest.mark.parametrize("branches", [1, np.int64(3), None])
def test_a_launch_has_the_bits_of_the_calls_twice_after_the_inputs_changed(
    gpu: Backend, spd: Spd, branches: int | None
) -> None:
    batches = make(gpu, spd, 0)
    given = [gpu.empty(batch.n, batch.batch, batch.layout) for batch in batches[:2]]
    with record(branches=branches) as graph:
        results = [factor(a, spec_of(a.n), out=out) for a, out in zip(batches[:2], given, strict=True)]
        results += [factor(a, spec_of(a.n)) for a in batches[2:]]
    assert len(graph) == len(ORDERS)
    for seed in (10, 20):
        for batch, changed in zip(batches, make(gpu, spd, seed), strict=True):
            batch.put(0, changed.to_dense())
        graph.launch()
        for batch, result in zip(batches, results, strict=True):
            expected = factor(batch, spec_of(batch.n))
            np.testing.assert_array_equal(bits(gpu, result.L), bits(gpu, expected.L))
            np.testing.assert_array_equal(gpu.host(result.info), gpu.host(expected.info))
    np.testing.assert_array_equal(bits(gpu, given[0].marked("lower")), bits(gpu, results[0].L))


@pytest.mark.parametrize("branches", [1, 2, None])
def test_calls_that_share_data_keep_their_order(gpu: Backend, spd: Spd, branches: int | None) -> None:
    a, other = (packed(gpu, spd(40, 4, seed=seed)) for seed in (1, 2))
    first, second = gpu.empty(4, 40, a.layout), gpu.empty(4, 40, a.layout)
    given, given_other = bits(gpu, a), bits(gpu, other)
    with record(branches=branches) as graph:
        factor(a, spec_of(4), out=first)  # reads what the next but one overwrites
        factor(other, spec_of(4), out=second)
        factor(a, spec_of(4, in_place=True), out=a)
        factor(other, spec_of(4), out=first)  # writes what the first call wrote
        # Reads what the second call wrote, and writes what it read: factors of such matrices are definite themselves.
        last = factor(second, spec_of(4), out=other)
    for _ in range(2):
        a.put(0, given)
        other.put(0, given_other)
        graph.launch()
        np.testing.assert_allclose(bits(gpu, a.marked("lower")), np.linalg.cholesky(given), rtol=1e-5, atol=1e-5)
        l = np.linalg.cholesky(given_other)
        for batch in (first, second):
            np.testing.assert_allclose(bits(gpu, batch.marked("lower")), l, rtol=1e-5, atol=1e-5)
        assert not gpu.host(last.info).any()
        expected = factor(second, spec_of(4))
        np.testing.assert_array_equal(bits(gpu, last.L), bits(gpu, expected.L))


def test_each_call_waits_for_those_it_needs_and_no_other(fake_graphs: FakeGraphs, spd: Spd) -> None:
    gpu = get_backend("cuda")
    a = make(gpu, spd, 0)[1]
    one, two, three, four, five = (gpu.empty(4, 64, CHUNKS) for _ in range(5))

    def waits(branches: int | None, *calls: tuple[Any, Any]) -> list[list[int]]:
        with record(branches=branches):
            for given, out in calls:
                factor(given, spec_of(4), out=out)
        nodes = fake_graphs.graphs[-1].nodes
        return [[nodes.index(before) for before in node.before] for node in nodes]

    apart = [(a, out) for out in (one, two, three, four, five)]
    assert waits(None, *apart) == [[], [], [], [], []]
    assert waits(1, *apart) == [[], [0], [1], [2], [3]]
    assert waits(2, *apart) == [[], [], [0], [1], [2]]
    assert waits(None, *[(a, one)] * 4) == [[], [0], [1], [2]], "what others wait for already is left out"
    assert waits(None, (a, one), (a, two), (one, three)) == [[], [], [0]], "reads what was written"
    assert waits(None, (one, two), (a, three), (a, one)) == [[], [], [0]], "writes what was read"
    assert waits(2, (a, one), (one, two), (a, three), (two, four)) == [[], [0], [0], [1]]


def test_failing_matrices_have_their_info_in_a_graph(gpu: Backend, spd: Spd) -> None:
    dense = spd(40, 4)
    a = packed(gpu, dense)
    with record() as graph:
        _, info = factor(a, spec_of(4))
    dense[7, 2, 2] = -1
    a.put(0, dense)
    graph.launch()
    assert np.flatnonzero(gpu.host(info)).tolist() == [7]
    assert gpu.host(info)[7] == 3


def test_nothing_runs_before_the_launch_and_all_else_runs_at_once(
    fake_gpu: FakeGpu, fake_graphs: FakeGraphs, spd: Spd
) -> None:
    a = packed(get_backend("cuda"), spd(40, 4))
    built, ran = len(fake_gpu.built), len(fake_gpu.launches)
    with record() as graph:
        factor(a, spec_of(4), out=get_backend("cuda").empty(4, 40, CHUNKS))
        assert len(fake_gpu.built) > built, "what compiling costs is not the launch's"
        assert not [entry for entry, *_ in fake_gpu.launches[ran:] if entry.startswith("potrf")]
        with ThreadPoolExecutor(1) as pool:
            elsewhere = pool.submit(factor, a, spec_of(4)).result(30)
        dense = a.to_dense()
    assert len(graph) == 1, "other threads' calls are theirs"
    np.testing.assert_allclose(elsewhere.L.to_dense().get(), np.linalg.cholesky(dense.get()), rtol=1e-5)
    assert fake_graphs.calls == ["cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiate"]
    graph.launch()
    assert fake_graphs.calls[3:] == ["cuGraphLaunch"]


def test_arrays_are_factored_at_once_while_a_graph_is_recorded(gpu: Backend, spd: Spd) -> None:
    a = packed(gpu, spd(40, 4)).to_dense()
    with record() as graph:
        l, _ = cholesky_ex(a)
    assert len(graph) == 0
    np.testing.assert_allclose(gpu.host(l), np.linalg.cholesky(gpu.host(a)), rtol=1e-5, atol=1e-5)
    graph.launch()


def test_a_graph_keeps_what_it_uses_and_lets_it_go(fake_gpu: FakeGpu, fake_graphs: FakeGraphs, spd: Spd) -> None:
    def recorded() -> Graph:
        large = packed(get_backend("cuda"), spd(300, 16))
        with record() as graph:
            factor(large, spec_of(16))
        return graph

    before = fake_gpu.used
    graph = recorded()
    gc.collect()
    memory.release()
    assert fake_gpu.used - before >= 2 * 320 * 16 * 16 * 4
    made = fake_graphs.graphs[:]
    assert [each.destroyed for each in made] == [False, False]
    del graph
    gc.collect()
    assert [each.destroyed for each in made] == [True, True]
    memory.release()
    assert fake_gpu.used == before


def test_streams(fake_gpu: FakeGpu, fake_graphs: FakeGraphs, spd: Spd) -> None:
    a = packed(get_backend("cuda"), spd(40, 4))
    with record() as graph:
        result = factor(a, spec_of(4))
    for _ in range(2):
        graph.launch(stream=7)
    assert [stream for _, _, stream in fake_gpu.launches[-2:]] == [7, 7]
    assert fake_gpu.waits == [(0, 7), (0, 7)]
    assert not any(array.gpudata.reusable for array in (a.data, result.L.data, result.info))
    fake_gpu.capturing.add(7)
    graph.launch(stream=7)
    factor(a, spec_of(4), stream=7)
    assert len(fake_gpu.waits) == 2, "another library's graph knows nothing of the default stream"


class TestErrors:
    def test_no_cuda_bindings(self, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("cuda", "cuda.bindings"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(BackendUnavailable, match=r"pip install -e '\.\[gpu,graphs\]'"), record():
            pytest.fail("nothing was recorded")

    def test_no_gpu(self, fake_gpu: FakeGpu, fake_graphs: FakeGraphs) -> None:
        fake_gpu.gpus = 0
        with pytest.raises(BackendUnavailable, match="finds no GPU"), record():
            pytest.fail("nothing was recorded")

    @pytest.mark.parametrize("branches", [0, -1, 1.5, True])
    def test_branches(self, branches: Any, fake_graphs: FakeGraphs) -> None:
        with (
            pytest.raises(ValueError, match=r"branches: got .*, expected a positive integer"),
            record(branches=branches),
        ):
            pytest.fail("nothing was recorded")

    def test_what_cannot_be_recorded(self, gpu: Backend, spd: Spd) -> None:
        a = packed(gpu, spd(40, 4))
        with record() as graph:
            with pytest.raises(ValueError, match=r"batch: lives on backend 'cpu', expected 'cuda'"):
                factor(Batch.from_dense(spd(40, 4)))
            with pytest.raises(ValueError, match=r"stream: got one .* give it to Graph\.launch"):
                factor(a, spec_of(4), stream=1)
            with pytest.raises(RuntimeError, match="end that recording before"), record():
                pytest.fail("nothing was recorded")
            with pytest.raises(RuntimeError, match="launch it after its `with` block"):
                graph.launch()
            factor(a, spec_of(4))
        assert len(graph) == 1
        graph.launch()

    def test_an_error_while_recording_leaves_all_as_it_was(self, gpu: Backend, spd: Spd) -> None:
        a = packed(gpu, spd(40, 4))

        def fail() -> None:
            with record() as graph:
                graphs.append(graph)
                factor(a, spec_of(4))
                raise KeyError("the user's own")

        graphs: list[Graph] = []
        with pytest.raises(KeyError, match="the user's own"):
            fail()
        with pytest.raises(RuntimeError, match="once that has succeeded"):
            graphs[0].launch()
        l, _ = factor(a, spec_of(4))
        np.testing.assert_allclose(bits(gpu, l), np.linalg.cholesky(bits(gpu, a)), rtol=1e-5, atol=1e-5)
        with record() as graph:
            again = factor(a, spec_of(4))
        graph.launch()
        np.testing.assert_array_equal(bits(gpu, again.L), bits(gpu, l))

    @pytest.mark.parametrize(
        ("call", "doing"),
        [
            ("cuGraphCreate", "making a graph"),
            ("cuGraphAddKernelNode", "recording potrf_f32_n4_chunked"),
            ("cuGraphInstantiate", "instantiating a graph"),
            ("cuGraphLaunch", "launching a graph"),
        ],
    )
    def test_the_driver_refuses(self, call: str, doing: str, fake_graphs: FakeGraphs, spd: Spd) -> None:
        a = packed(get_backend("cuda"), spd(40, 4))

        def use() -> None:
            with record() as graph:
                factor(a, spec_of(4))
            graph.launch()

        fake_graphs.fail[call] = INVALID_VALUE
        with pytest.raises(DeviceError, match=rf"{doing}.*: invalid argument \(CUDA error 1\)"):
            use()
        fake_graphs.fail.clear()
        gc.collect()
        assert all(graph.destroyed for graph in fake_graphs.graphs)
        use()

    def test_a_lost_context(self, fake_gpu: FakeGpu, fake_graphs: FakeGraphs, spd: Spd) -> None:
        a = packed(get_backend("cuda"), spd(40, 4))
        with record() as graph:
            factor(a, spec_of(4))
        fake_gpu.status = ILLEGAL_ADDRESS
        with pytest.raises(DeviceLost, match="start a new one"):
            graph.launch()
        fake_gpu.status = 0


def test_importing_needs_no_cuda_bindings(run_python: Any) -> None:
    done = run_python(
        "-c",
        "import sys, batchchol.backends.cuda.graphs\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('cuda', 'pycuda')])",
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.gpu
def test_a_graph_of_torch_s_holds_calls_too(spd: Spd) -> None:
    torch = pytest.importorskip("torch")
    gpu = get_backend("cuda")
    a = packed(gpu, spd(1000, 12))
    out = gpu.empty(12, 1000, CHUNKS)
    _, kept = factor(a, spec_of(12), out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # The info is a new array, for the last one is still there: allocated while torch records.
        l, info = factor(a, spec_of(12), out=out, stream=torch.cuda.current_stream())
    assert int(info.gpudata) != int(kept.gpudata)
    for seed in (1, 2):
        dense = spd(1000, 12, seed=seed)
        a.put(0, dense)
        graph.replay()
        torch.cuda.synchronize()
        np.testing.assert_allclose(bits(gpu, l), np.linalg.cholesky(dense), rtol=1e-4, atol=1e-4)
        assert not gpu.host(info).any()


@pytest.mark.parametrize("branches", [1, None])
def test_calls_of_a_graph_are_timed_and_checked(
    fake_gpu: FakeGpu, fake_graphs: FakeGraphs, spd: Spd, branches: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchchol.backends.cuda.measuring.clock.WARM_UP_SECONDS", 0.0)
    # So long that few calls make a burst.
    fake_gpu.seconds_per_launch = 1e-3
    gpu = get_backend("cuda")
    batch = packed(gpu, spd(600, 4))
    recorded = record_calls(gpu, spec_of(4), batch, calls=3, branches=branches)
    # Buffers of four times the cache, in whole graphs.
    assert [len(graph) for graph in recorded.graphs] == [3, 3]
    assert len({result.L.address for results in recorded.results for result in results}) == 6
    sample = recorded.sample(5)
    assert (len(sample.seconds), sample.protocol) == (5, "queued")
    # The fake's launches all take as long.
    assert sample.seconds == pytest.approx([fake_gpu.seconds_per_launch] * 5)
    assert 0 < sample.ratio <= 1.5
    with pytest.raises(ResidualError):
        replace(recorded, batch=packed(gpu, spd(600, 4, seed=9))).sample(5)
    with pytest.raises(ValueError, match="calls: got 0"):
        record_calls(gpu, spec_of(4), batch, calls=0)


def test_the_host_s_time(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("batchchol.backends.cuda.measuring.clock.time.perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += 3e-6
        fake_gpu.clock += 1.0

    assert get_backend("cuda").host_seconds(call, samples=4) == pytest.approx([3e-6] * 4)
    with pytest.raises(ValueError, match="samples"):
        get_backend("cuda").host_seconds(call, samples=0)


@pytest.mark.gpu
def test_a_graph_takes_the_host_less_than_its_calls(spd: Spd) -> None:
    pytest.importorskip("cuda.bindings")
    gpu = get_backend("cuda")
    pairs = [(packed(gpu, spd(128, 8, seed=seed)), gpu.empty(8, 128, CHUNKS)) for seed in range(64)]
    with record() as graph:
        for a, out in pairs:
            factor(a, spec_of(8), out=out)

    def calls() -> None:
        for a, out in pairs:
            factor(a, spec_of(8), out=out)

    graph_seconds, call_seconds = (min(gpu.host_seconds(call)) for call in (graph.launch, calls))
    assert graph_seconds < call_seconds / 2
