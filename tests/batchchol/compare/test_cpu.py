"""The comparison: who is timed when, whose numbers count, and what is kept."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol import cli
from batchchol.artifacts.c_library import supported_targets
from batchchol.backends import Availability, get_backend
from batchchol.cli import compare as command
from batchchol.compare import contenders, cpu
from batchchol.compare.contenders import Contender, Outcome, Workload, canonical, kernels, verify, whole_call
from batchchol.compare.cpu import ROUNDS, Run, best_spec, compare, interleaved, measure
from batchchol.compare.peers import PEERS, Peer
from batchchol.compare.rows import Row, read_csv, table, write_csv
from batchchol.datasets import generation
from batchchol.defaults.lookup import default_spec
from batchchol.errors import BatchcholError, ResidualError
from batchchol.operations import roofline
from kernelgen import Layout

N, BATCH = 3, 50


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with a tiny cache, whose speed is nobody's business, and a clean checkout."""
    for module in (contenders, cpu, roofline.host_memory):
        monkeypatch.setattr(module, "last_level_cache_bytes", lambda: 4096)
    monkeypatch.setattr(roofline, "_MEASURING_SECONDS", 0.0)
    monkeypatch.setattr(roofline, "_PEAK_STEPS", 1000)
    monkeypatch.setattr(cpu, "commit", lambda: "c0ffee")
    monkeypatch.setenv("BATCHCHOL_THREADS", "2")
    roofline.measured_ceilings.cache_clear()
    yield
    roofline.measured_ceilings.cache_clear()


def silent(line: str) -> None:
    del line


@pytest.fixture
def workload() -> Workload:
    return Workload(generation.generate("diagonally_dominant", n=N, stop=BATCH))


def a_run(*peers: Peer, report: Callable[[str], None] = silent) -> Run:
    return Run(get_backend(), BATCH, "float32", 3, peers, report)


class Actor:
    """A contender that writes down what it is asked to do."""

    def __init__(self, name: str, diary: list[str], sets: int = 1, restores: bool = False) -> None:
        self.name, self.diary, self.calls = name, diary, 0
        restore = (lambda: self.diary.append(f"{name} restores")) if restores else None
        self.contender = Contender(name, "1", "acts", Layout.canonical(), sets, self.run, restore)

    def run(self, index: int) -> Outcome:
        self.diary.append(f"{self.name}{index}")
        self.calls += 1
        factors = canonical(np.full((1, 1, 1), float(self.calls)))
        return Outcome(float(self.calls), factors, np.zeros(1, np.int32))


def test_contenders_take_turns_and_the_first_call_of_a_turn_is_not_counted() -> None:
    diary: list[str] = []
    actors = [Actor("a", diary), Actor("b", diary)]
    (a, last), (b, _) = interleaved([actor.contender for actor in actors], 10)
    assert diary == (["a0"] * 3 + ["b0"] * 3) * ROUNDS
    assert a == b == [2, 3, 5, 6, 8, 9, 11, 12, 14, 15]
    assert last.factors.data.item() == 15


@pytest.mark.parametrize("samples", [1, 2, 5, 7, 20, 23])
def test_every_contender_gives_as_many_samples_as_were_asked_for(samples: int) -> None:
    diary: list[str] = []
    timed = interleaved([Actor("a", diary).contender, Actor("b", diary).contender], samples)
    assert [len(seconds) for seconds, _ in timed] == [samples, samples]


def test_buffers_are_gone_round_and_restored_before_they_are_used_again() -> None:
    diary: list[str] = []
    interleaved([Actor("a", diary, sets=3, restores=True).contender], 4)
    rounds = ["a restores", "a0", "a1", "a2"]
    assert diary == rounds + rounds + ["a restores", "a0", "a1"]


def test_our_contenders_are_right_and_leave_the_workload_alone(workload: Workload) -> None:
    before = workload.dense.copy()
    backend = get_backend()
    specs = [default_spec(N, target=target) for target in backend.targets[:1]]
    for contender in (*kernels(backend, specs, workload, 2), whole_call(backend, workload, 2)):
        with contender.limit():
            outcome = contender.run(contender.sets - 1)
        assert verify(contender, outcome, workload.dense) <= 1.5
        assert contender.sets > 1
    assert all((array == before).all() for array in workload.inputs)


def test_the_whole_call_is_held_to_its_threads_and_lets_go(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    contender = whole_call(get_backend(), workload, 1)
    with contender.limit():
        assert get_backend().threads == 1
    assert get_backend().threads == 2
    monkeypatch.delenv(contenders.THREADS_VARIABLE)
    free = get_backend().threads
    with contender.limit():
        assert get_backend().threads == 1
    assert get_backend().threads == free


def test_the_best_spec_is_the_fastest_of_the_shortlist(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def timed(ready: list[Contender], samples: int) -> list[tuple[list[float], None]]:
        seen.extend(contender.spec for contender in ready)
        return [([1.0 if place == 3 else 2.0] * samples, None) for place, _ in enumerate(ready)]

    monkeypatch.setattr(cpu, "interleaved", timed)
    best = best_spec(a_run(), workload, 1, "")
    assert best.name == seen[3]
    assert seen[0] == default_spec(N, target=get_backend().target).name
    assert len(set(seen)) == len(seen) >= 2 * 3


def test_a_point_has_a_checked_row_for_everyone(workload: Workload) -> None:
    rows = measure(a_run(PEERS["numpy"], PEERS["scipy"]), workload, 2)
    assert [row.contender for row in rows] == ["batchchol factor", "batchchol cholesky", "numpy", "scipy"]
    for row in rows:
        assert (row.n, row.batch, row.threads, row.samples) == (N, BATCH, 2, 3)
        assert 0 < row.ratio <= 1.5
        assert row.seconds > 0 < row.roofline_seconds
        assert row.times_numpy == pytest.approx(rows[2].seconds / row.seconds)
        assert (row.commit, bool(row.machine), bool(row.version)) == ("c0ffee", True, True)
    # The whole matrix goes out where it is canonical.
    assert rows[1].roofline_seconds == rows[2].roofline_seconds > rows[0].roofline_seconds
    assert all(math.isnan(row.times_numpy) for row in measure(a_run(), workload, 1))


def spoilt(name: str, when: Callable[[Workload], bool]) -> Peer:
    """A peer that is NumPy, but wrong on some workloads."""

    def contender(workload: Workload, threads: int) -> Contender:
        honest = PEERS["numpy"].contender(workload, threads)

        def run(index: int) -> Outcome:
            outcome = honest.run(index)
            outcome.factors.data[-1, -1, -1] *= 1.01 if when(workload) else 1
            return outcome

        return replace(honest, name=name, run=run)

    return Peer(name, PEERS["numpy"].survey, contender)


@pytest.mark.parametrize("when", [lambda data: not data.cold, lambda data: data.cold], ids=["checked", "timed"])
def test_a_peer_that_is_wrong_has_no_number(when: Callable[[Workload], bool], workload: Workload) -> None:
    said: list[str] = []
    rows = measure(a_run(spoilt("liar", when), PEERS["numpy"], report=said.append), workload, 1)
    assert [row.contender for row in rows] == ["batchchol factor", "batchchol cholesky", "numpy"]
    assert any("liar left out" in line and "residual ratio" in line for line in said)


def test_a_peer_that_breaks_does_not_end_the_comparison(workload: Workload) -> None:
    def broken(workload: Workload, threads: int) -> Contender:
        raise OSError("libbroken.so: no such file")

    said: list[str] = []
    rows = measure(a_run(Peer("broken", PEERS["numpy"].survey, broken), report=said.append), workload, 1)
    assert len(rows) == 2
    assert any("broken left out: libbroken.so" in line for line in said)


def test_a_wrong_result_of_our_own_ends_it(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = contenders.whole_call
    lying = spoilt("batchchol cholesky", lambda data: data.cold).contender
    monkeypatch.setattr(contenders, "whole_call", lambda backend, data, threads: lying(data, threads))
    with pytest.raises(ResidualError, match="batchchol cholesky"):
        measure(a_run(), workload, 1)
    monkeypatch.setattr(contenders, "whole_call", honest)
    assert len(measure(a_run(), workload, 1)) == 2


def some(ns: tuple[int, ...], **more: Any) -> list[Row]:
    return compare(ns, BATCH, (1,), 2, **{"peers": ["numpy"], "report": silent, **more})


def noting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The orders that are measured from now on."""
    real, noted = cpu.measure, list[int]()

    def measure(run: Run, workload: Workload, threads: int) -> list[Row]:
        noted.append(workload.n)
        return real(run, workload, threads)

    monkeypatch.setattr(cpu, "measure", measure)
    return noted


def test_finished_points_survive_an_interruption_and_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new" / "rows.csv"
    real, measured = cpu.measure, list[int]()

    def interrupted(run: Run, workload: Workload, threads: int) -> list[Row]:
        if workload.n == 3:
            raise KeyboardInterrupt
        measured.append(workload.n)
        return real(run, workload, threads)

    monkeypatch.setattr(cpu, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        some((2, 3), out=out)
    assert [row.n for row in read_csv(out)] == [2, 2, 2]
    assert list(out.parent.iterdir()) == [out]

    monkeypatch.setattr(cpu, "measure", real)
    noted = noting(monkeypatch)
    rows = some((2, 3), out=out)
    assert (measured, noted) == ([2], [3])
    assert [row.n for row in rows] == [2, 2, 2, 3, 3, 3]
    assert len(read_csv(out)) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"commit": "other"},
        {"commit": "c0ffee-dirty"},
        {"machine": "another machine"},
        {"version": "numpy 0.1"},
        {"samples": 3},
    ],
    ids=lambda change: "-".join(map(str, next(iter(change.items())))),
)
def test_what_was_measured_otherwise_is_measured_again(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.csv"
    some((2,), out=out)
    # A changed checkout has the same name twice and is not the same code.
    if str(change.get("commit")).endswith("-dirty"):
        monkeypatch.setattr(cpu, "commit", lambda: "c0ffee-dirty")
    write_csv(out, [replace(row, **change) for row in read_csv(out)])
    measured = noting(monkeypatch)
    some((2,), out=out)
    assert measured == [2]
    assert len(read_csv(out)) == 3, "the old rows of the point are gone"


def test_absent_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Peer("ghost", lambda: Availability("ghost", False, "Ghost is not installed", "pip install ghost"), None)  # type: ignore[arg-type]
    monkeypatch.setitem(PEERS, "ghost", absent)
    said: list[str] = []
    rows = some((2,), peers=["ghost", "numpy"], report=said.append)
    assert "ghost is absent: Ghost is not installed; pip install ghost" in said
    assert [row.contender for row in rows] == ["batchchol factor", "batchchol cholesky", "numpy"]
    said.clear()
    with pytest.raises(BatchcholError, match="--peers: none of them can be used here, see above"):
        some((2,), peers=["ghost"], report=said.append)
    assert said == ["ghost is absent: Ghost is not installed; pip install ghost"]


def test_a_table_without_numpy_has_no_speedups_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert " nan " not in table(some((2,), peers=["scipy"]))


def test_a_machine_whose_speed_changes_meanwhile_is_named(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    real = cpu.interleaved

    def slower(ready: Any, samples: int) -> Any:
        return [([1.0, 1.0, 2.0, 2.0], outcome) for _, outcome in real(ready, samples)]

    monkeypatch.setattr(cpu, "best_spec", lambda *_: default_spec(workload.n, target=supported_targets()[0]))
    monkeypatch.setattr(cpu, "interleaved", slower)
    measure(a_run(report=said.append), workload, 1)
    assert any("this machine is busy: two measurements of the same kernel differ by 100%" in line for line in said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0,), 10, (1,), 2), "n: got 0, expected 1 to 128"),
        (((4, 129), 10, (1,), 2), "n: got 129, expected 1 to 128"),
        (((4,), 0, (1,), 2), "batch: got 0, expected at least 1"),
        (((4,), 10, (1, 3), 2), "threads: got 3, expected 1 to 2"),
        (((4,), 10, (1,), 0), "samples: got 0, expected at least 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_out_of_range_are_refused_before_anything_is_measured(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(*arguments, report=silent)


def command_line(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_prints_the_table_its_provenance_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    out, folder = tmp_path / "rows.csv", tmp_path / "plots"
    words = ["--n", "2,3", "--batch", "40", "--samples", "2", "--peers", "numpy"]
    assert command.run(command_line(*words, "--out", str(out), "--plot", str(folder))) == 0
    printed, progress = capsys.readouterr()
    shown = [[cell.strip() for cell in line.split("|")[1:4]] for line in printed.partition("\n\n")[0].splitlines()]
    assert shown[2:] == [[str(row.n), str(row.threads), row.contender] for row in read_csv(out)]
    assert len(shown) == 2 + 2 * 2 * 3
    for words_of_provenance in ("commit: c0ffee", "single call, cold data", "medians of 2 calls", "us on 2 threads"):
        assert words_of_provenance in printed
    assert "n = 3, threads = 2" in progress
    stems = [f"compare-float32-batch40-threads{threads}" for threads in (1, 2)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{s}.{k}" for s in stems for k in ("png", "svg"))


def test_the_command_says_that_an_interruption_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(run: Run, workload: Workload, threads: int) -> list[Row]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cpu, "measure", interrupt)
    words = ["compare", "--n", "2", "--batch", "9", "--peers", "numpy", "--out", str(tmp_path / "r.csv")]
    assert cli.main(words) == 130
    how = f"finished points are kept in {tmp_path / 'r.csv'}, the same command goes on from there"
    assert capsys.readouterr().err.endswith(f"batchchol: interrupted: {how}\n")


def test_the_command_explains_bad_values() -> None:
    with pytest.raises(BatchcholError, match="n: got 500, expected 1 to 128"):
        command.run(command_line("--n", "500", "--peers", "numpy"))


def test_a_missing_matplotlib_is_known_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchchol.report.gflops_plot.find_spec", lambda name: None)
    monkeypatch.setattr(cpu, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(BatchcholError, match=r"pip install -e '\.\[plots\]'"):
        command.run(command_line("--n", "2", "--plot", "somewhere"))
