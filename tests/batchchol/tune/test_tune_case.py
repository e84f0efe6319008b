"""Tuning: one case from the command line, and what the end of a sweep leaves behind."""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol import BatchcholError, cli, get_backend
from batchchol.cli.laboratory.tune import case as case_command
from batchchol.defaults import lookup, user
from batchchol.defaults.lookup import array_layout, default_layout
from batchchol.defaults.tables import Case, Entry, Placement, Table
from batchchol.measure import process
from batchchol.measure.energy import Energy
from batchchol.measure.point import Point
from batchchol.measure.row import Row
from batchchol.tune import compile, executors, one_case
from batchchol.tune.choosing import explain, learn
from batchchol.tune.choosing.contest import Site, spec_of
from batchchol.tune.choosing.winners import FINAL_SAMPLES, FIRST_SAMPLES, MARGIN
from batchchol.tune.one_case import tune_case
from kernelgen import FAMILIES, KernelSpec, Layout, Problem, ThreadSchedule
from tests.asked import choice_of, request_of

N, BATCH = 20, 1000
SITE = Site("a fake", "cuda", "sm_90", "queued", 1, 1e15, {"driver": "580", "version": "0.1"})
WANTED = SITE.request(Problem(N), BATCH)
ROWS, CHUNKS = Case("float32", "ieee", "canonical", order="row"), Case("float32", "ieee", "chunked", 32)
ROWWISE = spec_of(ROWS, N, ThreadSchedule(1, unroll="full", staged=True, threads=64), "cuda")
CHUNKED = spec_of(CHUNKS, N, ThreadSchedule(4, "right", "full", threads=64, cache="shared", stride=32), "cuda")
SMALL_CHUNKS = replace(CHUNKS, chunk=8), replace(CHUNKED, schedule=ThreadSchedule(2, stride=8))
TABLE = Table(
    "sm_90",
    "cuda",
    {case: (Entry(N, None, spec.schedule),) for case, spec in ((CHUNKS, CHUNKED), SMALL_CHUNKS, (ROWS, ROWWISE))},
    layouts=(Placement("float32", N, None, Layout.chunked(32)),),
    arrays=(Placement("float32", N, None, Layout.canonical("row")),),
)
KINDS, ALL = case_command.LAYOUTS, tuple(FAMILIES)


@pytest.fixture(autouse=True)
def own_tables(tmp_path: Path, tables: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose tables count, beside `TABLE` in place of the shipped ones; nothing is compiled."""
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(user.VARIABLE, "user")
    tables(TABLE)
    for module in (one_case, learn):
        monkeypatch.setattr(module, "build", lambda points, *_, **__: compile.Built(list(points), []))


class FakeMeasurer:
    """In place of a worker: on its GPU the block family, large tiles and chunks of 8 are the fastest."""

    last: FakeMeasurer

    def __init__(self, *_: Any, noise: float = 0.0, most: int = 10**9, broken: str = "", **__: Any) -> None:
        self.noise, self.most, self.broken, self.closed = noise, most, broken, 0
        self.points: list[tuple[Point, int]] = []
        FakeMeasurer.last = self

    def __enter__(self) -> FakeMeasurer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        self.closed += 1

    def facts(self) -> dict[str, Any]:
        lanes = {"float32": 32, "float64": 32}
        return {"target": "cuda", "architecture": "sm_90", "protocol": "queued", "lanes": lanes, "free_bytes": None}

    def about(self, *_: Any) -> Mapping[str, Any]:
        return {"device": "a fake", "copy_bytes_per_second": 1e15, "toolkit": "CUDA 13", "version": "0.1"}

    def measure(self, point: Point, samples: int | None = None) -> Row:
        self.points.append((point, samples or 20))
        if len(self.points) > self.most:
            self.most = 10**9
            raise KeyboardInterrupt
        if self.broken in (point.spec.family, "all"):
            return Row(point, "runtime", "a fault")
        schedule = point.spec.schedule
        family = {"block": 0.5}.get(schedule.family, 1.0)
        chunk = {8: 0.8, None: 3.0}.get(point.chunk, 1.0)
        seconds = point.batch * 1e-9 * family * chunk * (1 + 1 / getattr(schedule, "nb", 1))
        seconds *= 1 + self.noise * (len(self.points) % 2)
        return Row.timed(point, (seconds,) * (samples or 20), floor_seconds=1e-9, wall_seconds=1e-3)


def tune(*options: Any) -> int:
    return cli.main(["tune", "--n", str(N), "--batch", str(BATCH), "--backend", "cuda", *map(str, options)])


def test_a_case_is_tuned_and_used_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(case_command, "Measurer", FakeMeasurer)
    assert tune() == 0
    said = capsys.readouterr().out
    measured = FakeMeasurer.last.points
    assert f"n=20, batch=1,000, float32, ieee on a fake (sm_90): {len({p for p, _ in measured})} of" in said
    assert "current\n" in said
    assert "% faster, past the margin of 3.0%" in said
    assert "batches go from chunked32-col to chunked8-col: 0.48 ns a matrix (before: 0.6), margin 3.0%" in said
    assert "a-fake-sm_90.json: the next call uses it" in said
    at: dict[str, Any] = {"target": "cuda", "arch": "sm_90", "device": "a fake"}
    layout = default_layout(N, batch=BATCH, **at)
    assert layout == array_layout(N, BATCH, **at) == Layout.chunked(8)
    for case in ({"layout": "canonical", "order": "row"}, {"chunk": 8}, {"chunk": 32}):
        choice = choice_of(N, batch=BATCH, **at, **case)
        assert choice.tuned is not None
        best = min(
            (p for p, _ in measured if (p.spec.layout, p.chunk) == (choice.spec.layout, case.get("chunk"))),
            key=lambda p: FakeMeasurer().measure(p).median_seconds,
        )
        assert (choice.spec.family, choice.spec.schedule.nb) == (best.spec.family, best.spec.schedule.nb)
        assert choice_of(N, batch=3 * BATCH, **at, **case).tuned is None
    assert choice_of(N, batch=BATCH, **at | {"device": None}, chunk=8).tuned is None
    assert cli.main(["explain", "--n", "20", "--batch", "1000", "--arch", "sm_90"]) == 0
    assert "tuned" not in capsys.readouterr().out
    found = explain.of_batches(request_of(N, batch=1500, **at))
    assert found.layout == layout
    assert found.layout_reason.startswith("the user's table, tuned at batch 1,000 on 20")
    assert "a-fake-sm_90.json of 20" in found.reason
    assert "what was used before took 1.2 ns" in found.reason
    assert re.search(r"protocol queued, \d+ kernels measured\)", found.reason)
    assert tune() == 0
    assert "a-fake-sm_90.json: the current choices stay; recorded as evidence" in capsys.readouterr().out
    assert not any(entry.kept for entry in user.load("a fake", "sm_90", "cuda").entries)
    assert choice_of(N, batch=BATCH, **at, chunk=8).spec.family == "block"


def test_noise_leaves_things_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = tune_case(FakeMeasurer(noise=3.0), SITE, WANTED, KINDS, ALL)  # type: ignore[arg-type]
    assert {(entry.kept, entry.margin) for entry in outcome.entries} == {(True, 3.0)}
    (batches,) = (placed for placed in outcome.placements if placed.section == "layouts")
    assert batches.kept
    assert batches.layout == batches.incumbent
    lookup.learn("a fake", "cuda", "sm_90", outcome.entries)
    at: dict[str, Any] = {"target": "cuda", "arch": "sm_90", "device": "a fake"}
    assert choice_of(N, batch=BATCH, **at, chunk=32).tuned is None
    found = explain.of_layout(request_of(N, batch=BATCH, **at), Layout.chunked(32))
    assert "measurements of the same kernel differ by 300%, so that nothing can replace it" in found.reason
    assert "no other was faster" not in found.reason
    assert found.timing is not None
    assert found.runner_up is not None
    assert found.margin == 3.0
    assert found.spec.schedule == choice_of(N, batch=BATCH, **at | {"device": None}, chunk=32).spec.schedule


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(case_command, "Measurer", lambda *_, **__: FakeMeasurer(noise=3.0))
    assert tune("--no-table") == 0
    assert "this machine is busy: two measurements of the same kernel differ by 300%" in capsys.readouterr().out
    monkeypatch.setattr(case_command, "Measurer", FakeMeasurer)
    assert tune("--no-table") == 0
    assert "busy" not in capsys.readouterr().out


def test_nothing_is_said_of_others_where_none_was_measured() -> None:
    outcome = tune_case(FakeMeasurer(), SITE, WANTED, ["chunked"], [])  # type: ignore[arg-type]
    alone = [replace(entry, runner_up=None, runner_up_ns=None) for entry in outcome.entries if entry.kept]
    lookup.learn("a fake", "cuda", "sm_90", alone)
    at: dict[str, Any] = {"target": "cuda", "arch": "sm_90", "device": "a fake"}
    found = explain.of_layout(request_of(N, batch=BATCH, **at), Layout.chunked(32))
    assert found.reason.endswith(": no other was measured there")
    assert "kernels measured" not in found.reason


def test_an_interrupt_ends_the_search_and_what_was_measured_counts() -> None:
    measurer: Any = FakeMeasurer(most=40)
    outcome = tune_case(measurer, SITE, WANTED, KINDS, ALL)
    assert isinstance(outcome.interrupt, KeyboardInterrupt)
    assert (measurer.closed, outcome.measured) == (1, 40)
    assert {entry.schedule.family for entry in outcome.entries if not entry.kept} == {"block"}
    assert len(measurer.points) == 41, "after the interrupt nothing is measured"
    again: Any = FakeMeasurer()
    total = len(tune_case(again, SITE, WANTED, KINDS, ALL).entries), len(again.points)
    late: Any = FakeMeasurer(most=total[1] - 1)
    outcome = tune_case(late, SITE, WANTED, KINDS, ALL)
    assert isinstance(outcome.interrupt, KeyboardInterrupt)
    assert len(late.points) == total[1]
    measured_in_turns = [entry for entry in outcome.entries if entry.about["samples"] > 2 * FINAL_SAMPLES]
    assert len(measured_in_turns) == total[0] - 1, "what was decided before stays so"


def test_a_search_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(one_case.time, "monotonic", lambda: next(clock) / 10)
    outcome = tune_case(FakeMeasurer(), SITE, WANTED, KINDS, ALL, seconds=10.0, jobs=2)  # type: ignore[arg-type]
    assert outcome.measured < outcome.candidates
    assert outcome.seconds < 11
    assert outcome.entries


def test_faults_are_no_end_unless_nothing_is_left() -> None:
    outcome = tune_case(FakeMeasurer(broken="block"), SITE, WANTED, KINDS, ALL)  # type: ignore[arg-type]
    assert {entry.schedule.family for entry in outcome.entries} & {"thread", "shared", "warp"}
    with pytest.raises(BatchcholError, match="nothing could be measured: runtime a fault"):
        tune_case(FakeMeasurer(broken="all"), SITE, WANTED, KINDS, ALL)  # type: ignore[arg-type]


def test_the_user_table_can_be_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(case_command, "Measurer", FakeMeasurer)
    few = ("--family", "block", "--layout", "chunked")
    assert tune(*few, "--no-table") == 0
    assert "--no-table: nothing was written" in capsys.readouterr().out
    monkeypatch.setenv(user.VARIABLE, "shipped")
    assert tune(*few) == 0
    assert "BATCHCHOL_TABLES=shipped: nothing was written" in capsys.readouterr().out
    assert user.load("a fake", "sm_90", "cuda").entries == ()
    assert {p.spec.layout for p, _ in FakeMeasurer.last.points} == {"chunked"}
    for options, message in (
        (["--n", "20", "--target", "avx2"], "--target: got 'avx2', expected 'cuda'"),
        (["--n", "20", "--keep-choices"], "--keep-choices: got no --from"),
        (["--n", "20", "--arch", "sm_90"], "--arch: got 'sm_90' without --from or --compile-only"),
    ):
        assert cli.main(["tune", "--backend", "cuda", *options]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(["tune", "--batch", "100"]) == 2
    assert "--n: not given, say which orders, such as 32, or a --space" in capsys.readouterr().err


def test_on_this_cpu_in_a_worker(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Real kernels in a real process; another process explains what it uses for it."""
    monkeypatch.undo()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCHCHOL_TABLES", "user")
        patch.setattr(process, "BENCH", "sweep_benches:SmallCache")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        options = ["--n", "1", "--batch", "700", "--layout", "canonical", "--seconds", "2", "--threads", "1"]
        assert cli.main(["tune", *options]) == 0
    said = capsys.readouterr().out
    cpu = get_backend("cpu")
    assert f"n=1, batch=700, float32, ieee on {cpu.model} ({cpu.target}): " in said
    table = user.path_of(cpu.model, cpu.target)
    assert str(table) in said
    explained = run_python("-m", "batchchol", "explain", "--n", "1", "--batch", "700", BATCHCHOL_TABLES="user")
    assert "tuned at n=1, batch=700 on 20" in explained.stdout, explained.stderr
    assert "ns a matrix" in explained.stdout
    table.unlink()


def rows_of(seconds: Mapping[KernelSpec, float], chunk: int | None = 32) -> list[dict[str, Any]]:
    about = {"device": "a fake", "copy_bytes_per_second": 1e12, "toolkit": "CUDA", "date": "2026-11-22T00:00:00"}
    return [
        Row.timed(SITE.point(spec, chunk, BATCH), (taken,) * 20, about=about).values()
        for spec, taken in seconds.items()
    ]


OTHERS = [KernelSpec(Problem(N), "chunked", "col", ThreadSchedule(nb), "cuda") for nb in (2, 3, 5)]


@pytest.mark.parametrize(("arch", "early"), [("sm_90", True), ("sm_86", None)])
def test_the_two_best_kernels_are_varied_however_they_are_launched(
    arch: str, early: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = (ThreadSchedule(nb, pdl=pdl) for nb in (2, 3, 5) for pdl in (None, True))
    both = [SITE.point(replace(OTHERS[0], schedule=schedule), 8, BATCH) for schedule in schedules]
    monkeypatch.setattr(one_case, "candidates", lambda *_: both)
    measurer: Any = FakeMeasurer()
    site = replace(SITE, arch=arch)
    tune_case(measurer, site, site.request(Problem(N), BATCH), ("chunked",), ALL)
    tried = [p.spec.schedule for p, samples in measurer.points if (p.chunk, samples) == (8, FIRST_SAMPLES)]
    assert len(tried) == len(set(tried))
    assert {(each.nb, each.pdl) for each in tried if each.cache == "shared"} == {(5, early), (3, early)}


def test_a_sweep_is_contested_where_another_seems_faster() -> None:
    facts, measurer = FakeMeasurer().facts(), FakeMeasurer()
    rows = rows_of({CHUNKED: 2e-6, OTHERS[0]: 1e-6, OTHERS[1]: 1.5e-6, OTHERS[2]: 3e-6})
    site, (entry,), *_ = learn.learn(rows, facts, measurer)  # type: ignore[arg-type]
    assert site.device == "a fake"
    assert {point.spec for point, _ in measurer.points} == {CHUNKED, *OTHERS[:2]}
    # On that GPU it was not true.
    assert (entry.kept, entry.incumbent) == (True, CHUNKED.schedule)
    quiet = FakeMeasurer()
    _, (entry,), *_ = learn.learn(rows_of({CHUNKED: 1e-6, OTHERS[0]: 0.99e-6}), facts, quiet)  # type: ignore[arg-type]
    assert entry.kept
    assert not quiet.points, "what stays by the rows is not measured again"
    absent = FakeMeasurer()
    learn.learn(rows_of({OTHERS[0]: 1e-6}), facts, absent)  # type: ignore[arg-type]
    assert CHUNKED in {point.spec for point, _ in absent.points}, "the current one is measured if the sweep lacked it"


def test_a_sweep_that_is_cut_short_counts_by_its_rows() -> None:
    facts = FakeMeasurer().facts()
    _, (entry,), *_ = learn.learn(rows_of({CHUNKED: 2e-6, OTHERS[0]: 1e-6}), facts, None)
    assert (entry.schedule, entry.kept, entry.ns) == (OTHERS[0].schedule, False, 1.0)
    assert learn.learn(rows_of({OTHERS[0]: 1e-6}), facts, None)[1] == []
    strange = rows_of({CHUNKED: 1e-6, OTHERS[0]: 1e-7})
    assert any(map(learn.usable, strange))
    for fault in ({"status": "wrong"}, {"any_block": True}, {"uplo": "upper"}, {"in_place": True}, {"order": "row"}):
        assert not learn.usable(strange[1] | fault), fault


def test_what_a_sweep_learned_is_kept_unless_that_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of({CHUNKED: 2e-6, OTHERS[0]: 1e-6})
    monkeypatch.setattr(learn.dataset, "read_rows", lambda folder, warn: rows)
    warnings: list[str] = []

    def keep(no_table: bool = False) -> None:
        options = argparse.Namespace(no_table=no_table, jobs=None)
        learn.keep(options, tmp_path, FakeMeasurer().facts(), None, warnings.append)

    keep(no_table=True)
    assert user.load("a fake", "sm_90", "cuda").entries == ()
    keep()
    assert "a-fake-sm_90.json: 1 of 1 cases have another kernel now, 0 of 0 another layout" in capsys.readouterr().out
    choice = choice_of(N, batch=BATCH, target="cuda", arch="sm_90", device="a fake", chunk=32)
    assert choice.spec == OTHERS[0]
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    keep()
    assert len(warnings) == 1
    assert f"the user's table is as it was: the cache cannot be used: {tmp_path / 'file'}" in warnings[0]


SPACE = """
[[kernels]]
n = 20
nb = [4, 10]
looking = "right"
unroll = "full"
threads = 64
cache = "shared"
stride = "chunk"
chunk = 32
batch = 1000
"""


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_sweep_ends_with_the_user_table(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a GPU whose large tiles are fast; when it is interrupted the rows that there are count."""
    monkeypatch.setattr(process, "BENCH", "sweep_benches:FakeGpu")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(compile, "build", one_case.build)
    here = executors.Here.sweep

    def sweep(*given: Any, **options: Any) -> Any:
        done = here(*given, **options)
        if interrupted:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(executors.Here, "sweep", sweep)
    (tmp_path / "tiny.toml").write_text(SPACE)
    options = ["tune", "--space", str(tmp_path / "tiny.toml"), "--data", str(tmp_path / "data")]
    assert cli.main([*options, "--no-table"]) == (130 if interrupted else 0)
    assert user.load("a fake", "sm_90", "cuda").entries == ()
    assert cli.main(options) == (130 if interrupted else 0)
    said = capsys.readouterr().out
    assert "a-fake-sm_90.json: 1 of 1 cases have another kernel now" in said
    (entry,) = user.load("a fake", "sm_90", "cuda").entries
    assert (entry.schedule.nb, entry.kept) == (10, False)
    # Those of a sweep are of one round, and those that are measured again of several.
    assert entry.about["samples"] == (20 if interrupted else 75)
    assert (entry.margin > MARGIN) == interrupted
    assert entry.incumbent == CHUNKED.schedule
    assert entry.about["toolkit"] == "a compiler"


def test_tuning_for_energy_says_what_is_used_and_needs_a_counter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(case_command, "Measurer", FakeMeasurer)
    assert tune("--objective", "energy") == 2
    assert "does not say what energy it uses" in capsys.readouterr().err

    def energy(self: FakeMeasurer, point: Point, seconds: float) -> Energy:
        used = point.batch * (3e-6 if point.spec in (ROWWISE, CHUNKED) else 1e-6)
        return Energy(used, used / 100, 400.0, 1e-6, seconds)

    facts = {**FakeMeasurer().facts(), "counts_joules": True}
    monkeypatch.setattr(FakeMeasurer, "facts", lambda _: facts)
    monkeypatch.setattr(FakeMeasurer, "energy", energy, raising=False)
    assert tune("--objective", "energy") == 0
    said = capsys.readouterr().out
    assert re.search(r"1 µJ a matrix, the current 3, the fewest of [2-9](.|\n)*the next call uses it", said)
