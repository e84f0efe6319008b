"""Comparisons of solves on a CPU: who takes part, what is checked, what rows and files say of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol.backends import get_backend
from batchchol.cli.laboratory import compare as command
from batchchol.compare import comparison
from batchchol.compare.comparison import Outcome
from batchchol.compare.contenders import Contender
from batchchol.compare.peers import PEERS, Peer
from batchchol.compare.rows import columns, read_rows, write_csv
from batchchol.compare.solves import SolveArena, Solved
from batchchol.errors import BatchcholError, ResidualError
from batchchol.operations.potrs import ratio_bound
from batchchol.operations.roofline import Ceilings, compulsory_bytes
from kernelgen import Layout
from kernelgen.operations import OPERATIONS

from .test_cpu import BATCH, N, command_line, noting, silent, small_machine
from .test_peers import DTYPES, found
from .test_rows import a_row

__all__ = ["small_machine"]

NRHS = 3
OWN = ["batchchol packed", "batchchol canonical", "batchchol cho_solve"]
SOLVING = [name for name, peer in PEERS["cpu"].items() if SolveArena.op in peer.ways]
DATASETS = Path(__file__).parents[3] / "datasets"


def arena_of(
    n: int = N, batch: int = BATCH, dtype: str = "float32", cold: bool = False, **changes: Any
) -> SolveArena:
    return SolveArena(get_backend("cpu"), "wishart", n, batch, dtype, cold=cold, **changes)


def compare(*peers: Peer, **changes: Any) -> Outcome:
    settings = {"ns": (N,), "sizes": (str(BATCH),), "threads": (1,), "samples": 3, "report": silent, "nrhs": NRHS}
    return comparison.compare(get_backend("cpu"), peers, op="potrs", **settings | changes)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("nrhs", [1, NRHS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 5, 17])
@pytest.mark.parametrize("name", SOLVING)
def test_every_way_of_a_peer_solves_a_ragged_batch(name: str, n: int, dtype: str, nrhs: int, threads: int) -> None:
    found(name)
    arena = arena_of(n, 101, dtype, nrhs=nrhs, threads=threads)
    before = arena.input(0).copy(), arena.column(0).copy()
    for way in PEERS["cpu"][name].contenders(arena):
        arena.restore()
        with PEERS["cpu"][name].limit(threads):
            way.calls[0]()
        assert 0 < arena.verify(way, 0) <= ratio_bound(n, "ieee")
    assert all((now == then).all() for now, then in zip((arena.input(0), arena.column(0)), before, strict=True))


def test_cold_factors_exceed_the_cache_and_each_set_has_its_own() -> None:
    arena = arena_of(cold=True)
    assert arena.sets * arena.input(0).nbytes >= 4 * 4096
    (way, _) = PEERS["cpu"]["scipy"].contenders(arena)
    for index, call in enumerate(way.calls):
        with pytest.raises(ResidualError):
            arena.verify(way, index)
        call()
        assert arena.verify(way, index) <= 1
    assert len({array.ctypes.data for pair in arena.pairs() for array in pair}) == 2 * arena.sets > 2


def test_factors_are_the_matrices_own() -> None:
    arena = arena_of()
    l, a = arena.input(0), super(SolveArena, arena_of()).inputs.data
    np.testing.assert_allclose(l @ l.swapaxes(1, 2), a, rtol=1e-4, atol=1e-4 * np.abs(a).max())
    assert not np.triu(l, 1).any()


def test_a_case_has_a_checked_row_for_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = Ceilings(1e9, 1e15, 2, "float32", "any")
    monkeypatch.setattr(type(get_backend("cpu")), "ceilings", lambda self, dtype="float32", threads=None: ceilings)
    rows = compare(PEERS["cpu"]["scipy"], threads=(2,)).rows
    assert [row.contender for row in rows] == [*OWN, "scipy"]
    for row in rows:
        assert (row.op, row.n, row.nrhs, row.batch, row.threads, row.samples) == ("potrs", N, NRHS, BATCH, 2, 3)
        assert 0 < row.ratio <= 1
        assert row.gflops == pytest.approx(2 * N**2 * NRHS * BATCH / row.seconds / 1e9)
    assert all(row.spec.startswith("potrs_f32_n3_") for row in rows[:3])
    # The sectors of a canonical triangle are more than a packed one.
    packed, *others = (row.roofline_seconds * 1e9 / BATCH for row in rows)
    assert packed == pytest.approx(4 * (N * (N + 1) / 2 + 2 * N * NRHS))
    assert others == [pytest.approx(compulsory_bytes(N, Layout.canonical(), nrhs=NRHS, op="potrs"))] * 3
    assert others[0] > packed


def test_who_cannot_solve_is_left_out_in_a_sentence() -> None:
    said: list[str] = []
    outcome = compare(PEERS["cpu"]["numpy"], PEERS["cpu"]["scipy"], required=True, report=said.append)
    assert [row.contender for row in outcome.rows] == [*OWN, "scipy"]
    sentence = "it takes no part in potrs: compare calls no function of it for the solution X of A X = B by the"
    assert outcome.absent["numpy"].startswith(sentence)
    assert any(line.startswith(f"numpy is absent: {sentence}") for line in said)
    with pytest.raises(BatchcholError, match="none of them can be used"):
        compare(PEERS["cpu"]["numpy"], required=True)


def test_wrong_solutions_have_no_number() -> None:
    def liar(arena: SolveArena) -> list[Contender]:
        honest = PEERS["cpu"]["scipy"].contenders(arena)[0]

        def result(index: int) -> Solved:
            arena.output(index)[-1, -1, -1] *= 1.01
            return arena.solved(index)

        return [replace(honest, result=result)]

    outcome = compare(replace(PEERS["cpu"]["scipy"], name="liar", ways={"potrs": liar}))
    assert [row.contender for row in outcome.rows] == OWN
    assert "matrix 332 has solutions of the residual ratio" in outcome.absent[f"liar at n = {N}, threads = 1"]


def test_a_wrong_solution_of_our_own_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchchol.operations.potrs.ratio_bound", lambda n, math: 0.0)
    with pytest.raises(ResidualError, match=r"batchchol packed \(potrs_f32_n3_"):
        compare()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "getri"}, "op: got 'getri', expected one of 'potrf', 'potrs'"),
        ({"op": "potrs", "nrhs": 0}, "nrhs: got 0, expected at least 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_there_is_not_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        comparison.compare(get_backend("cpu"), (), **changes)


# ---- Rows and files ----


def a_solve(**values: Any) -> Any:
    return a_row(op="potrs", nrhs=NRHS, spec="a_solve", times_numpy=1.0, **values)


def test_files_of_factorizations_are_as_they_were_and_others_say_what_was_computed(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    plain = ["contender", "spec", "n", "batch", "dtype", "protocol"]
    assert list(columns(on_gpu=False))[:6] == list(columns(on_gpu=True))[:6] == plain
    mixed = [a_row(times_numpy=1.0), a_solve()]
    write_csv(out, mixed)
    assert out.read_text().startswith("contender,spec,op,n,nrhs,batch,dtype,")
    assert read_rows(out) == mixed
    assert len({row.point for row in (*mixed, replace(mixed[1], nrhs=1))}) == 3


@pytest.mark.parametrize("path", sorted(DATASETS.glob("comparisons/compare*.csv")), ids=lambda path: path.stem)
def test_published_files_are_of_the_operation_in_their_name(path: Path) -> None:
    op = next((op for op in OPERATIONS if op in path.stem.split("_")), "potrf")
    of_8_too = {(op, 8)} if path.stem.endswith("_dx") else set()
    assert {(row.op, row.nrhs) for row in read_rows(path)} == {(op, 1)} | of_8_too


def test_another_number_of_right_hand_sides_or_operation_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, scipy = tmp_path / "rows.csv", PEERS["cpu"]["scipy"]
    first = compare(scipy, out=out).rows
    noted = noting(monkeypatch)
    assert len(compare(scipy, out=out).rows) == len(first) == 4
    assert noted == []
    compare(scipy, out=out, nrhs=1)
    comparison.compare(
        get_backend("cpu"), [scipy], ns=(N,), sizes=(str(BATCH),), threads=(1,), samples=3, report=silent, out=out
    )
    assert noted == [N, N]
    assert [(row.op, row.nrhs) for row in read_rows(out)] == [("potrs", 3)] * 4 + [("potrs", 1)] * 4 + [
        ("potrf", 1)
    ] * 3


# ---- The command ----


def test_the_command_says_which_operation_and_draws_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    monkeypatch.chdir(tmp_path)
    words = ["--op", "potrs", "--n", "2,3", "--batch", "40", "--samples", "2", "--threads", "1", "--peers", "scipy"]
    assert command.run(command_line(*words, "--plot", "plots")) == 0
    printed, _ = capsys.readouterr()
    shown = [[cell.strip() for cell in line.split("|")[1:6]] for line in printed.partition("\n\n")[0].splitlines()]
    assert shown[0] == ["op", "nrhs", "n", "threads", "contender"]
    assert shown[2:] == [["potrs", "1", str(n), "1", name] for n in (2, 3) for name in [*OWN, "scipy"]]
    assert len(read_rows(tmp_path / "compare_potrs.csv")) == 8
    stem = "compare-potrs-nrhs1-float32-batch40-threads1"
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [f"{stem}.png", f"{stem}.svg"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nrhs", "2"), "--nrhs: of potrf there is no such choice: leave it out"),
        (("--backend", "cuda", "--op", "potrs", "--tuned", "a.csv"), "--tuned: of potrs there is no such choice"),
    ],
    ids=["nrhs", "tuned"],
)
def test_the_command_refuses_what_the_other_operation_has(
    words: tuple[str, ...], message: str, fake_gpu: object
) -> None:
    with pytest.raises(BatchcholError, match=message):
        command.run(command_line(*words))
