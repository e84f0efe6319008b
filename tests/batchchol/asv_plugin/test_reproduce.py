"""Claims measured again: fake rows at the function that measures, and one real case by the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchchol.asv_plugin.gate.estimate import LEAST
from batchchol.asv_plugin.reproduce import page
from batchchol.asv_plugin.reproduce import run as running
from batchchol.asv_plugin.reproduce.cases import Asked, Case, chosen, needed
from batchchol.asv_plugin.reproduce.kept import Here, Kept
from batchchol.asv_plugin.reproduce.run import Machine
from batchchol.asv_plugin.reproduce.verdicts import Holds, Judged, status
from batchchol.cli import main
from batchchol.compare.peers import PEERS
from batchchol.compare.rows import Row, read_rows, write_csv
from batchchol.errors import BatchcholError, ResidualError
from batchchol.report.claims.listed import Listed, load

ROOT = Path(__file__).parents[3]
FILE = ROOT / "datasets" / "comparisons" / "compare_avx2_epyc.csv"
EPYC = Here("amd-epyc-2-cores-avx2", "", "0123456789ab")
OTHER = replace(EPYC, machine="another-cpu")
ONE = ["epyc/n8/b16384/gflops", "epyc/n8/b16384/speedup:numpy", "epyc/n8/b16384/schedule"]


@pytest.fixture(scope="module")
def listed() -> Listed:
    return load(ROOT)


@pytest.fixture(autouse=True)
def every_peer_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_absent", lambda case: {})


class Fake:
    """Measures by the published rows: `own` times as long for this library's, `peer` times for the others."""

    def __init__(self, own: float = 1.0, peer: float = 1.0, file: Path = FILE) -> None:
        self.own, self.peer, self.rows, self.calls = own, peer, read_rows(file), 0

    def __call__(self, case: Case, asked: Asked) -> Sequence[Row]:
        self.calls += 1
        peers = PEERS[case.backend]
        jitter = 1 + 0.002 * (-1) ** self.calls
        return [
            replace(row, seconds=row.seconds * jitter * (self.peer if row.contender in peers else self.own))
            for row in self.rows
            if Case.of(row) == case and row.contender in asked.contenders
        ]


def reproduced(
    listed: Listed,
    folder: Path,
    measure: Callable[[Case, Asked], Sequence[Row]],
    *,
    only: Sequence[str] = ONE,
    here: Here = EPYC,
    budget: float = 60.0,
    threads: int = 2,
    usable: str = "cpu",
) -> dict[str, Judged]:
    backend: Any = SimpleNamespace(threads=threads)
    machine = Machine({usable: backend}, {"cuda": "no GPU"}, Kept(folder / "measured.jsonl", here))
    judged = running.run(chosen(listed, only), machine, budget, lambda line: None, measure)
    return {each.claim.name: each for each in judged}


def verdicts(judged: dict[str, Judged]) -> list[Holds]:
    return [each.holds for each in judged.values()]


def test_published_times_hold_on_the_same_machine(listed: Listed, tmp_path: Path) -> None:
    judged = reproduced(listed, tmp_path, Fake())
    assert verdicts(judged) == [Holds.SHOWN, Holds.YES, Holds.YES]
    assert judged[ONE[0]].ratio == pytest.approx(1, abs=0.01)
    assert judged[ONE[2]].here == judged[ONE[2]].claim.text()
    assert status(judged.values()) == 0
    assert page.counted(list(judged.values())) == "2 hold, 1 shown"
    assert page.counted(list(judged.values())[1:2]) == "1 holds"


def test_slower_kernels_do_not_hold_once_fresh_rounds_say_so_again(listed: Listed, tmp_path: Path) -> None:
    measure = Fake(own=1.3)
    judged = reproduced(listed, tmp_path, measure)
    assert verdicts(judged) == [Holds.SHOWN, Holds.NO, Holds.NO]
    assert judged[ONE[0]].ratio == pytest.approx(1 / 1.3, rel=0.01)
    assert measure.calls == 2 * LEAST
    assert status(judged.values()) == 1


@pytest.mark.parametrize(("peer", "holds"), [(1.0, Holds.YES), (1.3, Holds.NO), (0.7, Holds.NO)])
def test_a_peer_has_its_published_number_only_if_it_is_neither_slower_nor_faster(
    listed: Listed, tmp_path: Path, peer: float, holds: Holds
) -> None:
    name = "h200/n8/b1024/gflops:cusolver"
    measure = Fake(peer=peer, file=ROOT / "datasets" / "comparisons" / "compare_h200.csv")
    judged = reproduced(listed, tmp_path, measure, only=[name], here=replace(EPYC, gpu="NVIDIA H200"), usable="cuda")
    assert verdicts(judged) == [holds]


@pytest.mark.parametrize(("peer", "holds"), [(0.8, Holds.YES), (0.01, Holds.NO)])
def test_another_kind_of_machine_is_asked_who_is_faster(
    listed: Listed, tmp_path: Path, peer: float, holds: Holds
) -> None:
    judged = reproduced(listed, tmp_path, Fake(own=3.0, peer=3 * peer), here=OTHER)
    assert verdicts(judged) == [Holds.SHOWN, Holds.SHOWN, holds]
    assert list(judged)[1] == "epyc/n8/b16384/gflops"
    assert [each.shape for each in judged.values()] == [False, False, True]
    assert list(judged.values())[2].ratio == pytest.approx(peer, rel=0.01)
    assert page.SHAPES in page.table(list(judged.values()))


def test_what_needs_all_cases_waits_for_them(listed: Listed, tmp_path: Path) -> None:
    judged = reproduced(listed, tmp_path, Fake(), only=["epyc/worst"])
    assert judged["epyc/worst"].holds is Holds.YES
    cases = {json.loads(line)["case"]["n"] for line in (tmp_path / "measured.jsonl").read_text().splitlines()}
    assert cases == {n for n, _ in listed.find("epyc/worst").group.points}


def test_without_time_nothing_is_decided(listed: Listed, tmp_path: Path) -> None:
    measure = Fake()
    judged = reproduced(listed, tmp_path, measure, budget=0.0)
    assert (measure.calls, status(judged.values())) == (0, 3)
    assert "budget" in page.table(list(judged.values()))


def test_the_same_command_goes_on_from_what_is_kept(listed: Listed, tmp_path: Path) -> None:
    class Interrupted(Fake):
        def __call__(self, case: Case, asked: Asked) -> Sequence[Row]:
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().__call__(case, asked)

    with pytest.raises(KeyboardInterrupt):
        reproduced(listed, tmp_path, Interrupted())
    with open(tmp_path / "measured.jsonl", "a") as stream:
        stream.write('{"here": {"mach')
    for here, calls in ((EPYC, LEAST - 2), (EPYC, 0), (replace(EPYC, commit="fedcba987654"), LEAST)):
        measure = Fake()
        assert status(reproduced(listed, tmp_path, measure, here=here).values()) == 0
        assert measure.calls == calls
    changed = replace(EPYC, commit="0123456789ab-dirty")
    for _ in range(2):
        measure = Fake()
        reproduced(listed, tmp_path, measure, here=changed)
        assert measure.calls == LEAST


def test_rounds_with_fewer_contenders_are_not_taken_for_more(listed: Listed, tmp_path: Path) -> None:
    reproduced(listed, tmp_path, Fake(), only=ONE[:1])
    measure = Fake()
    reproduced(listed, tmp_path, measure)
    assert measure.calls == LEAST
    reproduced(listed, tmp_path, measure, only=ONE[:1])
    assert measure.calls == LEAST


def test_a_wrong_result_is_a_failure(listed: Listed, tmp_path: Path) -> None:
    def measure(case: Case, asked: Asked) -> Sequence[Row]:
        raise ResidualError("n = 8: wrong")

    judged = reproduced(listed, tmp_path, measure)
    assert (set(verdicts(judged)), status(judged.values())) == ({Holds.FAILED}, 2)
    assert "n = 8: wrong" in page.table(list(judged.values()))


def test_what_cannot_be_measured_says_why(listed: Listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_absent", lambda case: {"mkl-compact": "not installed", "torch": "not installed"})
    only = ["h200/n4/b1024/gflops", "epyc-2/n8/b16384/gflops", "epyc/n8/*/speedup:*", "posv/*"]
    judged = reproduced(listed, tmp_path, Fake(), only=only, threads=1)
    why = {name: each.why for name, each in judged.items() if each.holds is Holds.ABSENT}
    assert why.pop("h200/n4/b1024/gflops") == "cuda: no GPU"
    assert "needs 2 threads" in why.pop("epyc-2/n8/b16384/gflops")
    assert why.pop("epyc/n8/b16384/speedup:torch") == "torch: not installed"
    assert why.pop("epyc/n8/b16384/speedup:mkl-compact") == "mkl-compact: not installed"
    assert why
    assert all("another command" in each for each in why.values())
    assert judged["epyc/n8/b16384/speedup:numpy"].holds is Holds.YES


@pytest.mark.parametrize(
    ("pattern", "contender", "maths"),
    [
        ("h200/n8/b1024/gflops", "thread fast", ("fast", "ieee")),
        ("posv-f64/*", "packed", ("ieee",)),
        ("epyc/n8/*", "batchchol factor", ()),
    ],
)
def test_kernels_take_part_under_their_published_names(
    listed: Listed, pattern: str, contender: str, maths: tuple[str, ...]
) -> None:
    for asked in needed(chosen(listed, [pattern])).values():
        assert contender in asked.contenders
        assert asked.maths == maths


def test_a_pattern_that_no_claim_matches_is_refused(listed: Listed) -> None:
    with pytest.raises(BatchcholError, match="--only: got 'epyc/n9/"):
        chosen(listed, ["epyc/n8/*", "epyc/n9/*"])


LIST = """
[groups.tiny]
about = "A tiny <case>."
file = "tiny.csv"
where = { threads = 1 }
own = { contender = "batchchol cholesky" }
peers = ["numpy"]
cases = [{ n = 4, batch = [16384] }]
quantities = ["ns", "speedup:numpy", "date"]
[tables]
"""


def test_the_command_measures_a_real_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Servers' caches would have gigabytes copied.
    monkeypatch.setattr("batchchol.batches.host_memory.last_level_cache_bytes", lambda: 1 << 20)
    write_csv(tmp_path / "tiny.csv", [row for row in read_rows(FILE) if row.n == 4])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "claims.toml").write_text(LIST)
    out = tmp_path / "out"
    code = main(["reproduce", "--backend", "cpu", "--budget", "1", "--root", str(tmp_path), "--out", str(out)])
    said = capsys.readouterr()
    assert code in (0, 1, 3), said.err
    assert "tiny/n4/b16384/speedup:numpy" in said.out
    assert "round 1" in said.err
    shown = (out / "reproduced.html").read_text()
    assert "A tiny &lt;case&gt;." in shown
    assert "<code>n4/b16384/ns" in shown
    assert "http" not in shown
