"""A bench measures points: the data stay, results are checked before they are believed, and failures are statuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchchol.backends import Backend, cpu, get_backend
from batchchol.batches import host_memory
from batchchol.errors import CompileError, DeviceError, DeviceLost, OutOfMemory
from batchchol.measure import bench as benches
from batchchol.measure import shared_code
from batchchol.measure.bench import Bench, Settings
from batchchol.measure.point import Point
from batchchol.tune.expand import Machine, expand
from batchchol.tune.space import parse_space
from kernelgen import BlockSchedule, KernelSpec, Problem, SharedSchedule, ThreadSchedule

BRIEF = Settings(samples=5, warm_up=1, burst_seconds=5e-6)


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that few buffers exceed."""
    monkeypatch.setattr(host_memory, "last_level_cache_bytes", lambda: 1 << 15)


@pytest.fixture(params=["cpu", "cuda"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "cuda":
        request.getfixturevalue("fake_gpu")
    return get_backend(request.param)


def point(backend: Backend, n: int = 4, nb: int = 2, chunk: int = 32, batch: int = 100, **choices: Any) -> Point:
    spec = KernelSpec(Problem(n), "chunked", "col", ThreadSchedule(nb, **choices), backend.target)
    return Point(spec, batch, chunk, 1, backend.protocols[0])


def test_a_point_is_measured(backend: Backend) -> None:
    bench = Bench(backend, BRIEF)
    row = bench.measure(point(backend))
    assert (row.status, row.message) == ("correct", "")
    assert row.samples == len(row.sample_seconds) == BRIEF.samples
    assert all(seconds > 0 for seconds in row.sample_seconds)
    assert row.calls == 1 if backend.name == "cpu" else row.calls > 1
    assert 0 < row.ratio <= 1.5
    assert 0 < row.check_seconds < row.wall_seconds
    assert row.source == shared_code.code_of(row.point).hash
    assert row.about["code_bytes"] > 0
    assert (row.about["registers"] is None) == (backend.name == "cpu")
    assert row.about.get("occupancy") == (None if backend.name == "cpu" else 0.5)
    assert bench.about()["device"] == (backend.device().get("gpu") or backend.device()["cpu"])


def test_a_space_has_points_on_what_a_bench_finds(backend: Backend) -> None:
    bench = Bench(backend, BRIEF)
    facts = bench.facts()
    assert facts["architecture"] == ("sm_90" if backend.name == "cuda" else None)
    text = "[[kernels]]\nn = 3\nnb = 2\nbatch = [60, '2^40']\n"
    expansion = expand(parse_space(text, "mine.toml", "mine"), Machine.of(facts))
    assert [(each.batch, each.protocol) for each in expansion.points] == [(60, backend.protocols[0])]
    assert expansion.unsupported.total() == 1, "what the memory does not hold"
    row = bench.measure(expansion.points[0])
    assert row.status == "correct"


def test_other_protocols_are_measured_too(fake_gpu: Any) -> None:
    backend = get_backend("cuda")
    row = Bench(backend, BRIEF).measure(Point(point(backend).spec, 100, 32, 1, "single"))
    assert (row.status, row.calls) == ("correct", 1)
    assert row.floor_seconds > 0


def test_data_are_made_once_for_all_points_that_have_them(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = []
    fill = type(backend).fill
    monkeypatch.setattr(
        type(backend),
        "fill",
        lambda self, data, recipe: (filled.append((data.layout.chunk, recipe)), fill(self, data, recipe)),
    )
    bench = Bench(backend, BRIEF)
    for nb in (1, 2, 4):
        assert bench.measure(point(backend, nb=nb)).status == "correct"
    bench.measure(point(backend, chunk=64))
    bench.measure(point(backend))
    recipes = ("diagonally_dominant", "wishart")
    assert filled == [(chunk, recipe) for chunk in (32, 64) for recipe in recipes]


def test_data_that_were_used_longest_ago_make_room(backend: Backend) -> None:
    bench = Bench(backend, BRIEF)
    bench._budget = 0
    for chunk in (32, 64, 32):
        assert bench.measure(point(backend, chunk=chunk)).status == "correct"
        assert [key[-1].chunk for key in bench._data] == [chunk]


def test_blocks_of_any_size_share_code(fake_gpu: Any) -> None:
    backend = get_backend("cuda")
    bench = Bench(backend, BRIEF)
    points = [
        Point(point(backend, threads=threads, cache=cache).spec, 100, 32, 1, "queued", True)
        for threads in (32, 64)
        for cache in ("l1", "shared")
    ]
    rows = [bench.measure(one) for one in points]
    assert [row.status for row in rows] == ["correct"] * 4
    assert len({row.source for row in rows}) == 1
    assert len({one.key for one in points}) == 4
    entry = shared_code.code_of(points[0]).source.entry
    assert entry.endswith("_any")
    assert [cache for name, cache in fake_gpu.preferred if name == entry] == ["l1", "shared"] * 2
    blocks = [count for name, count, _ in fake_gpu.launches if name == entry]
    assert set(blocks) == {-(-100 // 32), -(-100 // 64)}


def test_code_for_any_block_has_the_shared_memory_of_each(fake_gpu: Any) -> None:
    bench, entries = Bench(get_backend("cuda"), BRIEF), set()
    for threads in (32, 64):
        schedule = ThreadSchedule(1, unroll="full", staged=True, threads=threads)
        one = Point(KernelSpec(Problem(4), "canonical", "row", schedule, "cuda"), 100, None, 1, "queued", True)
        assert bench.measure(one).status == "correct"
        entries.add(shared_code.code_of(one).source.entry)
        assert fake_gpu.allowed[min(entries)] == schedule.stage(Problem(4)).shared_bytes == threads * 72
    assert len(entries) == 1


@pytest.mark.parametrize("schedule", [SharedSchedule(2), BlockSchedule(4, 8)], ids=["shared", "block"])
def test_every_family_is_measured(fake_gpu: Any, schedule: Any) -> None:
    backend = get_backend("cuda")
    spec = KernelSpec(Problem(8), "chunked", "col", schedule, "cuda")
    row = Bench(backend, BRIEF).measure(Point(spec, 70, 32, 1, "queued", True))
    assert (row.status, row.message) == ("correct", "")


def corrupted(backend: Backend, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Every kernel's results are changed after it has run."""
    loaded = shared_code.load

    def load(backend: Backend, point: Point) -> Any:
        kernel, chosen = loaded(backend, point)

        class Corrupted:
            stats, function = kernel.stats, getattr(kernel, "function", None)

            def __call__(self, a: Any, out: Any, info: Any, *, threads: int) -> None:
                change(kernel, a, out, info, threads)

        return Corrupted(), chosen

    monkeypatch.setattr(shared_code, "load", load)


def test_a_wrong_result_is_no_number(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(kernel: Any, a: Any, out: Any, info: Any, threads: int) -> None:
        kernel(a, out, info, threads=threads)
        kernel(out, out, info, threads=threads)

    corrupted(backend, monkeypatch, twice)
    row = Bench(backend, BRIEF).measure(point(backend))
    assert row.status == "wrong"
    assert not row.seconds
    assert "residual" in row.message or "info" in row.message


def test_what_another_kernel_left_is_not_believed(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that reports success and writes nothing: the correct factors there are of the point before."""
    bench = Bench(backend, BRIEF)
    assert bench.measure(point(backend, nb=1)).status == "correct"

    def idle(kernel: Any, a: Any, out: Any, info: Any, threads: int) -> None:
        spare = out.copy()
        kernel(a, spare, info, threads=threads)

    corrupted(backend, monkeypatch, idle)
    assert bench.measure(point(backend, nb=2)).status == "wrong"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CompileError("timeout", "too slow"), "timeout"),
        (CompileError("compile", "no code"), "compile"),
        (OutOfMemory("a batch", 10, 5), "unsupported"),
        (DeviceError(701, "too many resources"), "unsupported"),
        (DeviceError(1, "an invalid value"), "runtime"),
    ],
)
def test_failures_are_statuses(monkeypatch: pytest.MonkeyPatch, error: Exception, status: str) -> None:
    def load(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(shared_code, "load", load)
    backend = get_backend("cpu")
    row = Bench(backend, BRIEF).measure(point(backend))
    assert (row.status, row.message) == (status, str(error))


def test_a_device_that_is_lost_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> Any:
        raise DeviceLost(700, "an illegal address")

    monkeypatch.setattr(shared_code, "load", load)
    with pytest.raises(DeviceLost):
        Bench("cpu", BRIEF).measure(point(get_backend("cpu")))


def test_what_cannot_run_is_said(backend: Backend) -> None:
    bench = Bench(backend, BRIEF)
    spec = KernelSpec(Problem(4), "chunked", "col", ThreadSchedule(2), backend.target, in_place=True)
    assert bench.measure(Point(spec, 100, 32, 1, backend.protocols[0])).status == "unsupported"
    assert bench.measure(Point(point(backend).spec, 100, 32, 1, "other")).status == "unsupported"


def test_conditions_are_read_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, temperatures = get_backend("cpu"), iter(range(40, 100))
    monkeypatch.setattr(cpu.CpuBackend, "conditions", lambda self: {"temperature_c": next(temperatures)})
    bench = Bench(backend, BRIEF)
    assert [bench.measure(point(backend)).about["temperature_c"] for _ in range(2)] == [40, 40]
    monkeypatch.setattr(benches, "_CONDITIONS_SECONDS", 0.0)
    assert bench.measure(point(backend)).about["temperature_c"] == 41


def test_a_block_needs_its_registers() -> None:
    stats = type("Stats", (), {"registers": 129})()
    assert shared_code.too_large(stats, 512)
    assert not shared_code.too_large(stats, 256)
    stats.registers = None
    assert not shared_code.too_large(stats, 512)


def test_ratios_are_of_the_worst_of_both_data_sets(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([0.9, 0.2])
    monkeypatch.setattr(type(backend), "check", lambda self, a, l, info, math: next(answers))
    assert Bench(backend, BRIEF).measure(point(backend)).ratio == 0.9
    assert np.isnan(Bench(backend, BRIEF).measure(Point(point(backend).spec, 1, 32, 1, "other")).ratio)
