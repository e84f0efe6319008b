"""The comparison: who is timed when, whose numbers count, and what is kept."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol import cli
from batchchol.backends import Backend, get_backend
from batchchol.cli.laboratory import compare as command
from batchchol.compare import comparison, cpu
from batchchol.compare.comparison import Outcome
from batchchol.compare.contenders import Arena, Contender, Entrant, Factored
from batchchol.compare.cpu import CpuVenue, own_threads
from batchchol.compare.heat import Heat
from batchchol.compare.peers import PEERS as ALL_PEERS
from batchchol.compare.peers import Peer
from batchchol.compare.rows import Row, read_rows, table, write_csv
from batchchol.defaults.lookup import default_spec
from batchchol.errors import BatchcholError, ResidualError
from batchchol.measure.stopwatch import Timing
from batchchol.operations import roofline

N, BATCH = 3, 50
PEERS = ALL_PEERS["cpu"]
OWN = ["batchchol factor", "batchchol cholesky"]


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with a tiny cache, whose speed does not matter, and a clean checkout."""
    monkeypatch.setattr("batchchol.batches.host_memory.last_level_cache_bytes", lambda: 4096)
    monkeypatch.setattr(roofline, "_MEASURING_SECONDS", 0.0)
    monkeypatch.setattr(roofline, "_PEAK_STEPS", 1000)
    monkeypatch.setattr("batchchol.measure.provenance.commit", lambda: "c0ffee")
    monkeypatch.setenv("BATCHCHOL_THREADS", "2")
    roofline.measured_ceilings.cache_clear()
    yield
    roofline.measured_ceilings.cache_clear()


def silent(line: str) -> None:
    del line


@pytest.fixture
def backend() -> Backend:
    return get_backend("cpu")


def arena_of(backend: Backend, cold: bool = True) -> Arena:
    return Arena(backend, "diagonally_dominant", N, BATCH, "float32", cold=cold)


def compare(*peers: Peer, **changes: Any) -> Outcome:
    settings: dict[str, Any] = {"ns": (N,), "sizes": (str(BATCH),), "threads": (1,), "samples": 3, "report": silent}
    return comparison.compare(get_backend("cpu"), peers, **settings | changes)


def an_actor(name: str, diary: list[str], sets: int = 1, restores: bool = False) -> Contender:
    """A contender that writes down what it is asked to do."""
    calls = [lambda index=index: diary.append(f"{name}{index}") for index in range(sets)]
    restore = (lambda: diary.append(f"{name} restores")) if restores else None
    return Contender("acts", calls, lambda index: pytest.fail("looked at"), restore)


def test_the_first_call_of_a_turn_is_not_counted(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    diary: list[str] = []
    clock = iter(float(second) for second in range(100))
    monkeypatch.setattr(type(backend), "seconds", lambda self, calls, **_: [call() or next(clock) for call in calls])
    timing = CpuVenue(backend).measure(an_actor("a", diary), 3, "single")
    assert timing == Timing((1.0, 2.0, 3.0), 1, 0)
    assert diary == ["a0"] * 4


def test_buffers_are_gone_round_by_all_contenders_together(backend: Backend) -> None:
    diary: list[str] = []
    venue = CpuVenue(backend)
    for name in ("a", "b", "a"):
        assert venue.measure(an_actor(name, diary, sets=8), 1, "single").last == int(diary[-1][1:])
    assert diary == ["a0", "a1", "b2", "b3", "a4", "a5"], "what one has touched is not warm for the next"


def test_buffers_are_restored_before_they_are_used_again(backend: Backend) -> None:
    diary: list[str] = []
    venue, contender = CpuVenue(backend), an_actor("a", diary, sets=3, restores=True)
    assert venue.measure(contender, 4, "single").last == 1
    venue.measure(contender, 1, "single")
    again = ["a restores", "a0", "a1"]
    assert diary == [*again, "a2", *again, *again]


@pytest.mark.parametrize("samples", [1, 2, 7, 23])
def test_entrants_take_turns_and_give_as_many_samples_as_were_asked_for(
    samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[tuple[str, int]] = []
    real = CpuVenue.measure

    def measure(self: CpuVenue, contender: Contender, samples: int, protocol: str) -> Timing:
        turns.append((contender.spec, samples))
        return real(self, contender, samples, protocol)

    monkeypatch.setattr(cpu, "_shortlist", lambda n, dtype, target: (default_spec(n, target=target, dtype=dtype),))
    monkeypatch.setattr(CpuVenue, "measure", measure)
    rows = compare(PEERS["numpy"], samples=samples).rows
    assert [row.samples for row in rows] == [samples] * 3
    specs = [row.spec for row in rows]
    rounds = min(samples, CpuVenue.rounds)
    assert [spec for spec, _ in turns] == specs * rounds
    assert sum(share for spec, share in turns if spec == specs[0]) == samples


def test_the_whole_call_is_held_to_its_threads_and_lets_go(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_threads(1):
        assert backend.threads == 1
    assert backend.threads == 2
    monkeypatch.delenv(cpu.THREADS_VARIABLE)
    free = backend.threads
    with own_threads(1):
        assert backend.threads == 1
    assert backend.threads == free
    limits = {entrant.name: entrant.limit for entrant in CpuVenue(backend).entrants(N, 9, "float32", (), (), {})}
    assert limits["batchchol cholesky"] is own_threads


def test_the_best_spec_is_the_fastest_of_the_shortlist(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def measure(self: CpuVenue, contender: Contender, samples: int, protocol: str) -> Timing:
        if contender.spec not in seen:
            seen.append(contender.spec)
        for call in contender.calls:
            call()
        seconds = 1.0 if seen.index(contender.spec) == 3 else 2.0
        return Timing((seconds,) * samples, 1, len(contender.calls) - 1)

    monkeypatch.setattr(CpuVenue, "measure", measure)
    first, whole = compare().rows
    assert first.spec == seen[3]
    assert seen[0] == default_spec(N, target=backend.target).name
    assert len(seen) >= 2 * 3 + 1
    assert whole.spec == seen[-1]


def test_a_case_has_a_checked_row_for_everyone() -> None:
    rows = compare(PEERS["numpy"], PEERS["scipy"], threads=(2,)).rows
    assert [row.contender for row in rows] == [*OWN, "numpy", "scipy"]
    for row in rows:
        assert (row.n, row.batch, row.threads, row.samples) == (N, BATCH, 2, 3)
        assert 0 < row.ratio <= 1.5
        assert row.seconds > 0 < row.roofline_seconds
        assert row.times_numpy == pytest.approx(rows[2].seconds / row.seconds)
        assert (row.commit, bool(row.machine), bool(row.version)) == ("c0ffee", True, True)
        assert row.protocol == "single call, cold data"
    # The whole matrix goes out where it is canonical.
    assert rows[1].roofline_seconds == rows[2].roofline_seconds > rows[0].roofline_seconds
    assert all(math.isnan(row.times_numpy) for row in compare().rows)


def spoilt(name: str, when: Callable[[Arena], bool]) -> Peer:
    """A peer that is NumPy, but wrong on some matrices."""

    def contenders(arena: Arena) -> list[Contender]:
        (honest,) = PEERS["numpy"].contenders(arena)

        def result(index: int) -> Factored:
            found = honest.result(index)
            assert isinstance(found, Factored)
            found.l.data[-1, -1, -1] *= 1.01 if when(arena) else 1
            return found

        return [replace(honest, result=result)]

    return replace(PEERS["numpy"], name=name, ways={"potrf": contenders})


@pytest.mark.parametrize("when", [lambda arena: not arena.cold, lambda arena: arena.cold], ids=["checked", "timed"])
def test_a_peer_that_is_wrong_has_no_number(when: Callable[[Arena], bool]) -> None:
    said: list[str] = []
    rows = compare(spoilt("liar", when), PEERS["numpy"], report=said.append).rows
    assert [row.contender for row in rows] == [*OWN, "numpy"]
    assert any("liar left out: liar (numpy.linalg.cholesky" in line and "residual ratio" in line for line in said)


def test_a_peer_that_breaks_does_not_end_the_comparison() -> None:
    def broken(arena: Arena) -> list[Contender]:
        raise OSError("libbroken.so: no such file")

    said: list[str] = []
    rows = compare(replace(PEERS["numpy"], name="broken", ways={"potrf": broken}), report=said.append).rows
    assert [row.contender for row in rows] == OWN
    assert any("broken left out: libbroken.so" in line for line in said)


def test_a_wrong_result_of_our_own_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CpuVenue.entrants

    def lying(self: CpuVenue, *case: int, **more: Any) -> list[Entrant]:
        first, whole = real(self, *case, **more)
        return [first, replace(whole, make=spoilt("", lambda arena: arena.cold).contenders)]

    monkeypatch.setattr(CpuVenue, "entrants", lying)
    with pytest.raises(ResidualError, match="batchchol cholesky"):
        compare()


def noting(monkeypatch: pytest.MonkeyPatch, interrupted: int | None = None) -> list[int]:
    """The orders that are measured from now on, until one of them is interrupted."""
    real, noted = Heat.rows, list[int]()

    def rows(self: Any, entrants: Sequence[Entrant]) -> list[Row]:
        if self._arena.n == interrupted:
            raise KeyboardInterrupt
        noted.append(self._arena.n)
        return real(self, entrants)

    monkeypatch.setattr(Heat, "rows", rows)
    return noted


def test_finished_cases_survive_an_interruption_and_are_not_measured_again(tmp_path: Path) -> None:
    out = tmp_path / "new" / "rows.csv"
    settings: dict[str, Any] = {"ns": (2, 3), "samples": 2, "out": out}
    with pytest.MonkeyPatch.context() as patch:
        measured = noting(patch, interrupted=3)
        with pytest.raises(KeyboardInterrupt):
            compare(PEERS["numpy"], **settings)
    assert [row.n for row in read_rows(out)] == [2, 2, 2]
    assert list(out.parent.iterdir()) == [out]

    with pytest.MonkeyPatch.context() as patch:
        noted = noting(patch)
        rows = compare(PEERS["numpy"], **settings).rows
    assert (measured, noted) == ([2], [3])
    assert [row.n for row in rows] == [2, 2, 2, 3, 3, 3]
    assert len(read_rows(out)) == 6


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"commit": "other"}, 3),
        ({"commit": "c0ffee-dirty"}, 3),
        ({"machine": "another machine"}, 6),
        ({"version": "numpy 0.1"}, 3),
        ({"samples": 3}, 3),
        ({"threads": 2}, 6),
    ],
    ids=lambda value: "-".join(map(str, next(iter(value.items())))) if isinstance(value, dict) else "",
)
def test_what_was_measured_otherwise_is_measured_again(
    change: dict[str, Any], left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.csv"
    compare(PEERS["numpy"], samples=2, out=out)
    # A changed checkout has the same name twice and is not the same code.
    if str(change.get("commit")).endswith("-dirty"):
        monkeypatch.setattr("batchchol.measure.provenance.commit", lambda: "c0ffee-dirty")
    write_csv(out, [replace(row, **change) for row in read_rows(out)])
    measured = noting(monkeypatch)
    compare(PEERS["numpy"], samples=2, out=out)
    assert measured == [N]
    assert len(read_rows(out)) == left, "the old rows of the same case are gone, and no others"


def test_absent_peers_are_named() -> None:
    def absent() -> str:
        raise ImportError("Ghost")

    ghost = replace(
        PEERS["numpy"],
        name="ghost",
        version=absent,
        missing="{error} is not installed",
        hint="pip install ghost",
    )
    said: list[str] = []
    rows = compare(ghost, PEERS["numpy"], required=True, report=said.append).rows
    assert "ghost is absent: Ghost is not installed; pip install ghost" in said
    assert [row.contender for row in rows] == [*OWN, "numpy"]
    said.clear()
    with pytest.raises(BatchcholError, match="--peers: none of them can be used here, see above"):
        compare(ghost, required=True, report=said.append)
    assert said == ["ghost is absent: Ghost is not installed; pip install ghost"]


def test_a_table_without_numpy_has_no_speedups_over_it() -> None:
    assert " nan " not in table(compare(PEERS["scipy"]).rows)


def test_a_machine_whose_speed_changes_meanwhile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    real = CpuVenue.measure

    def slower(self: CpuVenue, *of: Any) -> Timing:
        slow = 2.0 if self._calls > 4 * 2 else 1.0
        return replace(real(self, *of), seconds=(slow,))

    monkeypatch.setattr(cpu, "_shortlist", lambda n, dtype, target: (default_spec(n, target=target, dtype=dtype),))
    monkeypatch.setattr(CpuVenue, "measure", slower)
    compare(samples=4, report=said.append)
    assert any("this machine is busy: two measurements of the same kernel differ by 100%" in line for line in said)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ns": (4, 0)}, "n: got 0, expected at least 1"),
        ({"threads": (1, 3)}, "threads: got 3, expected 1 to 2"),
        ({"samples": 0}, "samples: got 0, expected at least 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_out_of_range_are_refused_before_anything_is_measured(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(**changes)


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
    assert shown[2:] == [[str(row.n), str(row.threads), row.contender] for row in read_rows(out)]
    assert len(shown) == 2 + 2 * 2 * 3
    for words_of_provenance in ("commit: c0ffee", "single call, cold data", "medians of 2 calls", "us on 2 threads"):
        assert words_of_provenance in printed
    assert "n = 3, threads = 2" in progress
    stems = [f"compare-float32-batch40-threads{threads}" for threads in (1, 2)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{s}.{k}" for s in stems for k in ("png", "svg"))


def test_the_command_says_that_an_interruption_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    noting(monkeypatch, interrupted=2)
    words = ["compare", "--n", "2", "--batch", "9", "--peers", "numpy", "--out", str(tmp_path / "r.csv")]
    assert cli.main(words) == 130
    how = f"finished points are kept in {tmp_path / 'r.csv'}, the same command goes on from there"
    assert capsys.readouterr().err.endswith(f"batchchol: interrupted: {how}\n")


def test_the_command_explains_bad_values() -> None:
    with pytest.raises(BatchcholError, match="n: got 500, expected 1 to 128"):
        command.run(command_line("--op", "posv", "--n", "500", "--peers", "numpy"))


def test_a_missing_matplotlib_is_known_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(comparison, "compare", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(BatchcholError, match=r"pip install -e '\.\[plots\]'"):
        command.run(command_line("--n", "2", "--plot", "somewhere"))
