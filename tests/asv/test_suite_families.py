"""Questions about families of kernels, canonical arrays, small batches and launches: what they measure, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchchol.asv_plugin.samples import FILE_VARIABLE, load_samples
from batchchol.defaults.tables import Case, Entry, Table
from kernelgen import FAMILIES, SharedSchedule, ThreadSchedule

from ..fakes import cuda_bindings as fake_cuda_bindings
from ..fakes.pycuda import FakeGpu, forget, install

WHY = "the suite's extra is not installed: there is no asv"
pytest.importorskip("asv", reason=WHY)
skip_error = pytest.importorskip("asv_runner.benchmarks.mark", reason=WHY).SkipNotImplemented

pytestmark = pytest.mark.usefixtures("suite")
Part = Callable[[str], Any]

PACKED = Case("float32", "ieee", "chunked")
THREADS = {n: ThreadSchedule(nb, looking) for n, nb, looking in ((8, 3, "left"), (24, 4, "top"), (48, 5, "top"))}


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGpu]:
    gpu = install(monkeypatch, tmp_path)
    # So long that few calls make a burst.
    gpu.seconds_per_launch = 1e-3
    fake_cuda_bindings.install(monkeypatch, gpu)
    monkeypatch.setattr("batchchol.backends.cuda.measuring.clock.WARM_UP_SECONDS", 0.0)
    monkeypatch.setenv("BATCHCHOL_BACKEND", "cuda")
    yield gpu
    forget()


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of defaults in which one thread is best up to order 24, and a block with shared memory past that."""
    entries = (
        Entry(8, 1_000, THREADS[8]),
        Entry(24, 1_000, THREADS[24]),
        Entry(32, 1_000, SharedSchedule(8)),
        Entry(32, 100_000, SharedSchedule(16)),
    )
    of_chunk = Case("float32", "ieee", "chunked", 64)
    made = Table("sm_90", "cuda", {PACKED: entries, of_chunk: (Entry(48, None, THREADS[48]),)})
    monkeypatch.setattr("batchchol.defaults.source_of", lambda target, arch: SimpleNamespace(table=made))


def schedule(part: Part, **values: Any) -> Any:
    point = part("harness.grid").Point(backend="cuda", nb=None, **values)
    return part("harness.cases").planned(point, part("harness.precompile").blueprint("sm_90"), False).spec.schedule


@pytest.mark.usefixtures("table")
def test_each_family_is_measured_by_what_the_table_names_of_it(part: Part) -> None:
    assert schedule(part, n=16, family="thread").nb == 4
    assert schedule(part, n=32, family="thread").nb == 4, "the nearest that is there"
    assert schedule(part, n=32, family="thread", chunk=64).nb == 5
    assert schedule(part, n=32, family="shared", batch=2_000).nb == 8
    assert schedule(part, n=24, family="shared", batch=90_000).nb == 16
    for values, reason in (
        ({"family": "block"}, "the table of defaults names none for"),
        ({"family": "thread", "math": "fast"}, "names none"),
        ({"family": "thread", "layout": "canonical"}, "names none"),
        ({"n": 8, "family": "shared", "batch": 90_000}, "nb=16 cannot be built"),
    ):
        with pytest.raises(skip_error, match=reason):
            schedule(part, **values)


def test_older_commits_skip_families_with_the_reason(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("batchchol.defaults.source_of")
    with pytest.raises(skip_error, match="this commit has no tables of families"):
        schedule(part, family="thread")
    monkeypatch.delattr("kernelgen.FAMILIES")
    point = part("harness.grid").Point(backend="cuda", family="shared")
    with pytest.raises(skip_error, match="family='shared' cannot be built: this commit has thread"):
        part("harness.cases").planned(point, part("harness.precompile").blueprint(), False)


@pytest.mark.parametrize("question", ["families.Families", "shared.Shared", "canonical.Canonical"])
def test_every_point_is_built_or_skipped(question: str, part: Part) -> None:
    module, name = question.split(".")
    asked = getattr(part(module), name)
    blueprint, grid = part("harness.precompile").blueprint("sm_90"), part("harness.grid")
    built: list[Any] = []
    for named in part("harness.profiles").kept_points("full", name, asked.param_names, asked.params, "cuda"):
        point = grid.point_of(named)
        try:
            spec = asked.planned(point, blueprint).spec
        except skip_error:
            continue
        built.append(spec)
        assert (spec.problem.n, spec.layout, spec.problem.math) == (point.n, point.layout, point.math)
        assert point.family in (None, spec.family)
    assert len({spec.name for spec in built}) > 10
    assert {spec.family for spec in built} <= set(FAMILIES)


def test_the_published_variant_has_the_tiles_and_the_order_that_are_asked_for(part: Part) -> None:
    point = part("harness.grid").Point(backend="cuda", family="shared", nb=16, looking="top")
    planned = part("harness.cases").planned(point, part("harness.precompile").blueprint(), False)
    assert planned.spec.schedule == SharedSchedule(16, "top", matrices=4, cache="shared")


@pytest.fixture
def samples_taken(part: Part, monkeypatch: pytest.MonkeyPatch) -> int:
    """Few, of emulated launches: they take a thousand times as long as a GPU's."""
    for name in ("harness.cases", "harness.device", "small_batches"):
        monkeypatch.setattr(part(name), "SAMPLES", 4)
    return 4


@pytest.mark.parametrize("way", ["single", "queued", "graph"])
def test_small_batches_are_timed_by_every_way(
    way: str,
    fake_gpu: FakeGpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: Part,
    benchmark_at: Callable[..., Any],
    samples_taken: int,
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "file"))
    monkeypatch.setitem(part("small_batches").GRAPHS, "graph", {"calls": 4})
    monkeypatch.setattr("batchchol.backends.cuda.measuring.clock._HOST_CALLS", 1)
    benchmark = benchmark_at("small_batches.SmallBatches.device_factor", backend="cuda", n=8, batch=128, way=way)
    assert not benchmark.do_setup()
    samples = benchmark.do_run()["samples"]
    assert samples == pytest.approx([fake_gpu.seconds_per_launch / 128] * samples_taken)
    (record,) = load_samples(tmp_path / "file")
    assert record.params["way"] == way
    assert 0 < record.about["ratio"] <= 4
    host = benchmark_at("small_batches.SmallBatches.track_host", backend="cuda", n=8, batch=128, way=way)
    assert not host.do_setup()
    if way == "single":
        with pytest.raises(skip_error, match="what it spends on a queued one"):
            host.do_run()
    else:
        assert 0 < host.do_run() < 1e5


def test_ways_of_graphs(part: Part, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    small = part("small_batches")
    chosen = small.Case(part("harness.cases").Plan(None, "cuda", "a spec", None), "a batch")
    monkeypatch.setattr(part("harness.library"), "graphs", lambda *what, **options: asked.append(options))
    for way in small.GRAPHS:
        small.recorded(chosen, way)
    assert asked == [{"branches": 1}, {}, {"branches": None}]


def test_small_batches_without_cuda_bindings_are_skipped(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, part: Part
) -> None:
    def missing() -> Any:
        raise part("harness.library").BackendUnavailable("graphs need cuda-bindings")

    monkeypatch.setattr("batchchol.backends.cuda.graphs.bindings", missing)
    asked = part("small_batches").SmallBatches()
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    asked.setup("cuda", 8, 128, "fast", "graph")
    with pytest.raises(skip_error, match="graphs need cuda-bindings"):
        asked.device_factor()


@pytest.mark.parametrize("pdl", [False, True])
def test_launches_are_timed_as_the_librarys_schedule_and_early(
    pdl: bool,
    fake_gpu: FakeGpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    benchmark_at: Callable[..., Any],
    part: Part,
    samples_taken: int,
) -> None:
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "file"))
    # Those of all points, which is not what this is about.
    monkeypatch.setattr(part("harness.library"), "build", lambda backend, specs: None)
    at = {"backend": "cuda", "n": 8, "batch": 128, "pdl": pdl}
    benchmark = benchmark_at("launches.Launches.device_factor", **at)
    assert not benchmark.do_setup()
    samples = benchmark.do_run()["samples"]
    assert samples == pytest.approx([fake_gpu.seconds_per_launch / 128] * samples_taken)
    (record,) = load_samples(tmp_path / "file")
    assert (record.params["pdl"], record.about["protocol"]) == (pdl, "queued")
    assert record.about["spec"].endswith("_pdl") == pdl
    fake_gpu.launches.clear()
    host = benchmark_at("launches.Launches.track_host", **at)
    assert not host.do_setup()
    assert 0 < host.do_run() < 1e5
    assert {entry.endswith("_pdl") for entry, *_ in fake_gpu.launches if entry.startswith("potrf")} == {pdl}


def early(part: Part, arch: str | None, pdl: bool | None) -> Any:
    point = part("harness.grid").Point(backend="cuda", math="fast", pdl=pdl)
    return part("harness.cases").planned(point, part("harness.precompile").blueprint(arch), True).spec


def test_a_launch_is_all_that_differs_from_the_default(part: Part) -> None:
    plain, *both = (early(part, "sm_90", pdl) for pdl in (None, False, True))
    assert [spec.schedule.pdl for spec in both] == [None, True]
    assert {replace(spec.schedule, pdl=None) for spec in both} == {replace(plain.schedule, pdl=None)}
    assert early(part, "sm_120", True).schedule.pdl
    assert early(part, None, True).schedule.pdl


@pytest.mark.parametrize("pdl", [False, True])
def test_launches_without_a_difference_are_skipped_with_the_reason(
    pdl: bool, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(skip_error, match="sm_89 launches no kernel before its predecessors have ended"):
        early(part, "sm_89", pdl)
    assert early(part, "sm_89", None).problem.n == part("harness.grid").Point().n, "a default is measured as it is"
    older = SimpleNamespace(schedule=SimpleNamespace(nb=4))
    monkeypatch.setattr(part("harness.library"), "default_spec", lambda *_, **__: older)
    with pytest.raises(skip_error, match=f"pdl={pdl} cannot be built: this commit launches kernels when"):
        early(part, "sm_90", pdl)


def test_what_names_no_launch_keeps_its_place(part: Part) -> None:
    assert not {"pdl", "family", "blocks"} & set(part("harness.grid").AXES)


@pytest.mark.parametrize("question", ["launches.Launches", "small_batches.SmallBatches"])
def test_default_schedules_are_compiled_ahead(question: str, part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = question.split(".")
    asked, blueprint = getattr(part(module), name)(), part("harness.precompile").blueprint("sm_90")
    alone = SimpleNamespace(func=asked.device_factor)
    monkeypatch.setattr(part("harness.precompile"), "disc_benchmarks", lambda folder: [alone])
    specs = set(part("harness.precompile").measured_specs("ci", "sm_90"))
    for named in part("harness.profiles").kept_points("ci", name, asked.param_names, asked.params, "cuda"):
        assert part("harness.cases").planned(part("harness.grid").point_of(named), blueprint, True).spec in specs
