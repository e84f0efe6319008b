"""The comparison on a GPU: who takes part with what, who is timed how, whose numbers count, and what is kept."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol import Batch, default_spec
from batchchol.backends import Backend, get_backend
from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.device import device
from batchchol.backends.cuda.measuring import clock as clock_module
from batchchol.cli.laboratory import compare as command
from batchchol.compare import comparison, contenders, known_kernels, own
from batchchol.compare.comparison import Outcome
from batchchol.compare.contenders import SINGLE, Arena, Contender, Entrant
from batchchol.compare.heat import Heat
from batchchol.compare.peers import PEERS, Peer
from batchchol.compare.rows import read_rows, write_csv
from batchchol.defaults.request import Request
from batchchol.errors import BatchcholError, CompileError, DataFileError, ResidualError
from batchchol.measure import stopwatch as stopwatch_module
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.operations.roofline import Ceilings
from kernelgen import FAMILIES, BlockSchedule, KernelSpec, Layout, Problem, SharedSchedule

from ...fakes.pycuda import FakeGpu

N, BATCH = 5, 40


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No time is spent on clocks, and the checkout is a clean one."""
    if not {"cuda", "fake_gpu"} & set(request.fixturenames):
        return
    backend = request.getfixturevalue("cuda" if "cuda" in request.fixturenames else "emulated")
    ceilings = Ceilings(4e12, 6e13, 1, "float32", "cuda")
    monkeypatch.setattr(type(backend), "ceilings", lambda self, dtype="float32", threads=None: ceilings)
    monkeypatch.setattr(clock_module, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(stopwatch_module, "BURST_SECONDS", 5e-6)
    monkeypatch.setattr(type(backend), "build", lambda self, specs: [])
    monkeypatch.setattr(type(backend), "last_level_cache_bytes", lambda self: 2_000)
    monkeypatch.setattr(comparison, "CHECKED_BATCH", 13)
    monkeypatch.setattr("batchchol.measure.provenance.commit", lambda: "c0ffee")


@pytest.fixture
def emulated(fake_gpu: FakeGpu) -> Backend:
    return get_backend("cuda")


def lapack(arena: Arena, index: int, spoil: Callable[[Any], None] | None = None) -> None:
    """Factors of set `index` by NumPy, into their room on the device."""
    factors = np.linalg.cholesky(memory.to_host(arena.input(index)))
    if spoil is not None:
        spoil(factors)
    memory.copy_to_device(factors, int(arena.output(index).gpudata))
    # Something that takes the GPU time.
    support.empty(device())


def a_peer(
    name: str = "peer",
    *,
    spoil: Callable[[Arena], Callable[[Any], None] | None] = lambda arena: None,
    ways: Sequence[str] = ("a way",),
    seconds: Callable[[str], None] = lambda way: None,
    **changes: Any,
) -> Peer:
    """A peer that is NumPy, in one or several ways."""

    def ways_of(arena: Arena) -> list[Contender]:
        return [contender(arena, way) for way in ways]

    def contender(arena: Arena, way: str) -> Contender:
        def call(index: int) -> None:
            seconds(way)
            lapack(arena, index, spoil(arena))

        return replace(Contender(way, arena.calls(call), arena.result), **changes)

    return Peer(name, "cuda", lambda: "peer 1.0", {"potrf": ways_of})


def compare(cuda: Backend, *peers: Peer, **changes: Any) -> Outcome:
    settings: dict[str, Any] = {"ns": (N,), "sizes": (str(BATCH),), "samples": 3, "report": lambda line: None}
    return comparison.compare(cuda, peers, **settings | changes)


def known_row(spec: KernelSpec, chunk: int, seconds: float) -> Row:
    return Row.timed(Point(spec, BATCH, chunk), [seconds])


def own_names(*known: Row) -> list[str]:
    """The library's contenders: who they are is the business of the table of defaults."""
    request = Request(Problem(N, math="fast"), "cuda", batch=BATCH, arch=device().architecture)
    families = [family for family in FAMILIES if known_kernels.best_packed(known, family, request)]
    return [*families, "canonical", "canonical in place", "cholesky_ex"]


def test_the_library_takes_part_with_each_family_it_knows_a_kernel_of_and_on_whole_arrays(cuda: Backend) -> None:
    problem = Problem(N, math="fast")
    shared = KernelSpec(problem, "chunked", "col", SharedSchedule(2), "cuda")
    block = KernelSpec(problem, "chunked", "col", BlockSchedule(4, 8, stride=8), "cuda")
    known = [known_row(shared, 32, 9.0), known_row(block, 8, 7.0)]
    rows = compare(cuda, known=known).rows
    assert [(row.contender, row.protocol) for row in rows] == [
        (name, protocol) for name in own_names(*known) for protocol in ("queued", "single")
    ]
    layouts = {row.contender: row.layout for row in rows}
    assert (layouts["block"], layouts["canonical"]) == ("chunked8-col", "canonical-row")
    assert all(0 < row.ratio <= 4 and row.seconds > 0 and row.commit == "c0ffee" for row in rows)
    specs = {row.contender: row.spec for row in rows}
    assert (specs["shared"], specs["block"]) == (shared.name, block.name)
    arch = device().architecture
    arrays = default_spec(N, target="cuda", layout="canonical", order="row", math="fast", batch=BATCH, arch=arch)
    assert specs["canonical"] == arrays.name
    assert specs["canonical in place"] == specs["canonical"] + "_inplace"


def test_everything_is_compiled_before_anything_is_timed(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[KernelSpec] = []
    prepared: list[tuple[list[int], str]] = []
    measured_first = measured(monkeypatch)

    def build(self: Backend, specs: Sequence[KernelSpec]) -> list[Any]:
        assert not measured_first
        built.extend(specs)
        return []

    monkeypatch.setattr(type(cuda), "build", build)
    peer = replace(a_peer(), prepare=lambda ns, dtype, *_: prepared.append((list(ns), dtype)))
    rows = compare(cuda, peer, ns=(3, 4)).rows
    assert prepared == [([3, 4], "float32")]
    assert {row.spec for row in rows if row.contender != "peer"} == {spec.name for spec in built}
    assert len(set(built)) == len(built)


def test_a_family_without_a_known_kernel_is_named(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_kernels, "_of_tables", lambda request: iter(()))
    shared = KernelSpec(Problem(N, math="fast"), "chunked", "col", SharedSchedule(2), "cuda")
    outcome = compare(cuda, known=[known_row(shared, 32, 9.0)])
    assert {row.contender for row in outcome.rows} & set(FAMILIES) == {"shared"}
    for family in {*FAMILIES} - {"shared"}:
        assert "no kernel of it is known" in outcome.absent[f"{family} at n = {N}"]


def test_absent_peers_are_named_with_how_to_get_them(cuda: Backend) -> None:
    def absent() -> str:
        raise OSError("no ghost")

    ghost = Peer("ghost", "cuda", absent, {"potrf": lambda arena: []}, hint="pip install ghost")
    said: list[str] = []
    outcome = compare(cuda, ghost, report=said.append)
    assert outcome.absent["ghost"] == "no ghost; pip install ghost"
    assert "ghost is absent: no ghost; pip install ghost" in said


def test_a_peer_is_checked_timed_by_both_protocols_and_says_how(cuda: Backend) -> None:
    rows = [row for row in compare(cuda, a_peer()).rows if row.contender == "peer"]
    assert [row.protocol for row in rows] == ["queued", "single"]
    assert {(row.version, row.n, row.batch, row.size) for row in rows} == {("peer 1.0", N, BATCH, str(BATCH))}
    assert all(row.timing == contenders.QUEUED and 0 < row.ratio <= 1 for row in rows)


def test_who_waits_for_its_own_stream_is_timed_as_single_calls_alone(cuda: Backend) -> None:
    outcome = compare(cuda, a_peer(protocols=SINGLE))
    (row,) = [row for row in outcome.rows if row.contender == "peer"]
    assert (row.protocol, row.calls, row.timing) == ("single", 1, contenders.WAITING)
    only_queued = compare(cuda, a_peer(protocols=SINGLE), protocols=("queued",))
    assert "can be timed by single alone" in only_queued.absent[f"peer at n = {N}, batch {BATCH}"]


@pytest.mark.parametrize("when", [lambda arena: not arena.cold, lambda arena: arena.cold], ids=["checked", "timed"])
def test_a_peer_that_is_wrong_has_no_number(when: Callable[[Arena], bool], cuda: Backend) -> None:
    def spoil(factors: Any) -> None:
        factors[-1, -1, -1] *= 1.01

    outcome = compare(cuda, a_peer("liar", spoil=lambda arena: spoil if when(arena) else None), a_peer())
    names = {row.contender for row in outcome.rows}
    assert "liar" not in names
    assert "peer" in names
    assert "residual ratio" in outcome.absent[f"liar at n = {N}, batch {BATCH}"]


@pytest.mark.parametrize(
    "error", [OSError("no such file"), TypeError("float64"), RuntimeError("CUDA"), MemoryError()]
)
def test_a_peer_that_breaks_does_not_end_the_comparison(error: Exception, cuda: Backend) -> None:
    def broken(way: str) -> None:
        raise error

    outcome = compare(cuda, a_peer("broken", seconds=broken), a_peer())
    assert {row.contender for row in outcome.rows} == {*own_names(), "peer"}
    assert outcome.absent[f"broken at n = {N}, batch {BATCH}"] == str(error)


def test_a_wrong_result_of_our_own_ends_it(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(a: Batch, l: Batch, info: Any, math: str) -> float:
        raise ResidualError("matrix 3 has the residual ratio 17")

    monkeypatch.setattr(cuda, "check", check)
    with pytest.raises(ResidualError, match=rf"{own_names()[0]} \(potrf_f32_n5_.*matrix 3"):
        compare(cuda)


def test_a_kernel_of_our_own_that_does_not_compile_is_left_out(
    cuda: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def packed_kernels(arena: Arena, specs: Sequence[KernelSpec], layout: Layout) -> list[Contender]:
        raise CompileError("timeout", "took too long")

    monkeypatch.setattr(own, "packed_kernels", packed_kernels)
    outcome = compare(cuda)
    *families, canonical, in_place, whole = own_names()
    for family in families:
        assert "took too long" in outcome.absent[f"{family} at n = {N}, batch {BATCH}"]
    assert {row.contender for row in outcome.rows} == {canonical, in_place, whole}


def test_of_several_ways_the_fastest_counts(fake_gpu: FakeGpu, emulated: Backend) -> None:
    def seconds(way: str) -> None:
        fake_gpu.clock += {"slow": 3e-4, "quick": 1e-4, "middling": 2e-4}[way]

    peer = a_peer(ways=("slow", "quick", "middling"), seconds=seconds)
    rows = [row for row in compare(emulated, peer).rows if row.contender == "peer"]
    assert {row.spec for row in rows} == {"quick"}
    assert rows[0].seconds == pytest.approx(1e-4, rel=0.1)


def test_what_a_kernel_left_before_is_not_taken_for_its_result(cuda: Backend) -> None:
    arena = Arena(cuda, "wishart", N, BATCH, "float32", "ieee")
    block, chunks = BlockSchedule(4, 8), Layout.chunked(8)
    canonical = own.canonical_kernel(arena, KernelSpec(Problem(N), "canonical", "row", block, "cuda"))
    packed = own.packed_kernels(arena, [KernelSpec(Problem(N), "chunked", "col", block, "cuda")], chunks)
    for contender in (*canonical, *packed):
        contender.calls[0]()
        assert arena.verify(contender, 0) <= 1.5
        assert contender.poison is not None
        contender.poison()
        with pytest.raises(ResidualError):
            arena.verify(contender, 0)


def test_in_place_kernels_factor_matrices_and_not_factors(cuda: Backend) -> None:
    arena = Arena(cuda, "wishart", N, BATCH, "float32", "ieee")
    problem = Problem(N)
    block = KernelSpec(problem, "canonical", "row", BlockSchedule(4, 8), "cuda", in_place=True)
    (contender,) = own.canonical_kernel(arena, block)
    assert contender.restore is not None
    contender.restore()
    contender.calls[0]()
    assert arena.verify(contender, 0) <= 1.5
    contender.calls[0]()
    with pytest.raises(ResidualError):
        arena.verify(contender, 0)


def test_the_sets_of_an_arena_exceed_the_cache_and_are_different_matrices(
    cuda: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(cuda), "last_level_cache_bytes", lambda self: 10_000)
    arena = Arena(cuda, "wishart", N, BATCH, "float32", "ieee")
    assert arena.sets == 17
    assert arena.sets * arena.input(0).nbytes * (N + 1) // (2 * N) >= 40_000, "of triangles alone"
    arena.poison()
    assert np.isnan(cuda.host(arena.output(0))).all()
    first, last = (cuda.host(arena.input(index)) for index in (0, 9))
    assert not (first == last).any()
    assert Arena(cuda, "wishart", N, BATCH, "float32", "ieee", cold=False).sets == 1


def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The entrants that are measured from now on."""
    real, noted = Heat.rows, list[str]()

    def note(self: Any, entrants: Sequence[Entrant]) -> Any:
        noted.extend(entrant.name for entrant in entrants)
        return real(self, entrants)

    monkeypatch.setattr(Heat, "rows", note)
    return noted


def test_an_interrupted_comparison_goes_on_where_it_stopped(
    cuda: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new" / "rows.csv"

    def interrupt(way: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(cuda, a_peer(seconds=interrupt), out=out)
    before = read_rows(out)
    assert {row.contender for row in before} == set(own_names())
    noted = measured(monkeypatch)
    rows = compare(cuda, a_peer(), out=out).rows
    assert noted == ["peer"]
    assert [row.contender for row in rows[-2:]] == ["peer", "peer"]
    assert len(read_rows(out)) == len(before) + 2 == len(rows)


@pytest.mark.parametrize(
    "change",
    [{"commit": "other"}, {"machine": "another"}, {"version": "0.0"}, {"toolkit": "CUDA 1.0"}, {"size": "1GiB"}],
    ids=lambda change: next(iter(change)),
)
def test_what_was_measured_otherwise_is_measured_again(
    change: dict[str, str], cuda: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.csv"
    compare(cuda, out=out)
    rows = read_rows(out)
    write_csv(out, [replace(row, **change) if row.contender == own_names()[0] else row for row in rows])
    noted = measured(monkeypatch)
    compare(cuda, out=out)
    assert noted == own_names()[:1]


def test_a_file_of_another_backend_is_left_alone(cuda: Backend, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    compare(cuda, ns=(2,), out=out)
    write_csv(out, [replace(row, gpu="") for row in read_rows(out)])
    before = out.read_text()
    with pytest.raises(DataFileError, match="it is a comparison on a CPU: choose another file"):
        compare(cuda, ns=(2,), out=out)
    assert out.read_text() == before


def test_a_changed_checkout_is_never_the_same_code(
    cuda: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchchol.measure.provenance.commit", lambda: "c0ffee-dirty")
    out = tmp_path / "rows.csv"
    first = compare(cuda, out=out).rows
    noted = measured(monkeypatch)
    assert len(compare(cuda, out=out).rows) == len(first)
    assert len(noted) == len({row.contender for row in first})


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"ns": (4, 0)}, "n: got 0, expected at least 1"), ({"samples": 0}, "samples: got 0, expected at least 1")],
    ids=["n", "samples"],
)
def test_values_out_of_range_are_refused(changes: dict[str, Any], message: str, cuda: Backend) -> None:
    with pytest.raises(ValueError, match=message):
        compare(cuda, **changes)


def command_line(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_measures_prints_and_plots(
    cuda: Backend, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    monkeypatch.setitem(PEERS["cuda"], "peer", a_peer())
    out, folder = tmp_path / "rows.csv", tmp_path / "plots"
    words = ["--backend", "cuda", "--n", "3,5", "--batch", "8,1KiB", "--samples", "2", "--peers", "peer"]
    assert command.run(command_line(*words, "--out", str(out), "--plot", str(folder))) == 0
    printed, progress = capsys.readouterr()
    rows = read_rows(out)
    assert {(row.n, row.size) for row in rows} == {(n, size) for n in (3, 5) for size in ("8", "1KiB")}
    assert {row.contender for row in rows} >= {"canonical", "cholesky_ex", "peer"}
    assert printed.count("\n| ") == len(rows) + 1
    assert "n = 5, batch 8: peer" in progress
    assert sorted(path.name for path in folder.iterdir()) == ["compare-cuda-float32.png", "compare-cuda-float32.svg"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backend", "cuda", "--threads", "2"), "--threads: on a GPU there is no such choice"),
        (("--backend", "cpu", "--math", "fast"), "--math: on a CPU there is no such choice"),
        (("--backend", "cpu", "--batch", "1024,2GiB"), "--batch: got 1024,2GiB, expected one number"),
        (("--backend", "cuda", "--peers", "numpy"), "peers: got 'numpy', expected some of cublas"),
    ],
    ids=["threads", "math", "batch", "peers"],
)
def test_the_command_refuses_what_the_other_backend_has(
    words: tuple[str, ...], message: str, fake_gpu: FakeGpu
) -> None:
    with pytest.raises(BatchcholError, match=message):
        command.run(command_line(*words))
