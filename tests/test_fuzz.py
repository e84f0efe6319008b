"""The fuzzers themselves: a few cases pass, and a wrong kernel is found and can be found again."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .fuzz import differential, general, larger, orthogonal, solves
from .kernel_runs import make_spec
from .times import scale_ratios


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`main` has a cache of its own."""
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    # One small kernel: which ones there are is no matter here.
    monkeypatch.setattr(differential, "random_spec", lambda random: make_spec(3, 3, math="fast", order="row"))


def test_a_few_cases_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert differential.main(["--case", "3", "--seed", "1"]) == 0
    assert "1 kernels" in capsys.readouterr().out


def test_a_wrong_info_is_reported_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = differential.lapack_info
    monkeypatch.setattr(differential, "lapack_info", lambda a: right(a) + 1)
    assert differential.main(["--seed", "5"]) == 1
    said = capsys.readouterr().out
    assert "of LAPACK" in said
    assert "python -m tests.fuzz.differential --seed 5 --case 0" in said


def test_larger_matrices_pass_and_a_wrong_info_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(larger, "MOST", 131)
    monkeypatch.setattr(larger, "ELEMENTS", {"cpu": 60_000})
    assert larger.main(["--case", "3", "--seed", "1"]) == 0
    right = larger.lapack_info
    monkeypatch.setattr(larger, "lapack_info", lambda a: right(a) + 1)
    assert larger.main(["--seed", "5"]) == 1
    assert "python -m tests.fuzz.larger --backend cpu --seed 5 --case" in capsys.readouterr().out


def test_general_matrices_pass_and_a_wrong_info_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec(3, 1, op="getrf", looking="right", layout="canonical", order="row")
    monkeypatch.setattr(general, "random_spec", lambda random, backend: spec)
    monkeypatch.setattr(general, "MOST", 60)
    assert general.main(["--case", "3", "--seed", "1", "--matrices", "1"]) == 0
    right = general.reference

    def wrong(a: Any) -> Any:
        pivots, info, clear = right(a)
        return pivots, info + 1, clear

    monkeypatch.setattr(general, "reference", wrong)
    assert general.main(["--seed", "5"]) == 1
    assert "info\npython -m tests.fuzz.general --seed 5 --case 0" in capsys.readouterr().out


def test_an_interrupt_ends_with_what_was_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seed: int, case: int, totals: differential.Totals) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(differential, "run_case", interrupted)
    assert differential.main([]) == 130
    assert "interrupted; 0 matrices" in capsys.readouterr().out


def test_ratios_at_a_scale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scale_ratios, "EXPONENTS", {"float32": (-149, 0)})
    monkeypatch.setattr(scale_ratios, "cpu_specs", lambda: [make_spec(4, 4, math="fast")])
    assert scale_ratios.main(["--backend", "cpu", "--out", str(tmp_path / "scale.csv")]) == 0
    with (tmp_path / "scale.csv").open() as stream:
        smallest, ordinary = csv.DictReader(stream)
    assert (smallest["failed"], ordinary["failed"]) == (smallest["matrices"], "0")
    assert 0 < float(ordinary["ratio"]) <= 4


@pytest.mark.parametrize("op", [*solves.KERNELS, *solves.CALLS])
def test_a_few_cases_of_solves_pass(
    op: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(solves, "MOST", 400)
    monkeypatch.setattr(solves, "random_case", lambda random, ops, backend: small_case(ops[0]))
    assert solves.main(["--op", op, "--case", "1"]) == 0
    said = capsys.readouterr().out
    assert " matrices, 1 cases, " in said
    assert f"over their bounds: {op} 0." in said


def small_case(op: str) -> solves.Case:
    """One small kernel of each operation, of the kernels that other tests use."""
    if op in solves.KERNELS:
        spec = make_spec(3, 3, op=op, layout="canonical", order="row")
        return solves.Case(op, 3, "float32", False, "ieee", 2, spec=spec)
    return solves.Case(op, 3, "float32", True, "ieee", 2)


@pytest.mark.parametrize(
    ("named", "wrong", "said"),
    [
        ("lapack_info", lambda right: lambda a: right(a) + 1, "of LAPACK"),
        (
            "call",
            lambda right: lambda *given: replace(right(*given), result=right(*given).result * 2),
            "error allowed",
        ),
    ],
    ids=["info", "solution"],
)
def test_a_wrong_solve_is_reported_with_the_command_that_repeats_it(
    named: str, wrong: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(solves, "random_case", lambda random, ops, backend: replace(small_case("solve"), nrhs=1))
    monkeypatch.setattr(solves, named, wrong(getattr(solves, named)))
    assert solves.main(["--op", "solve", "--seed", "5"]) == 1
    printed = capsys.readouterr().out
    assert said in printed
    assert "python -m tests.fuzz.solves --backend cpu --op solve --seed 5 --case 0" in printed


def test_wrong_factors_are_reported_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = orthogonal.Case(4, 3, "float32", "ieee", 2, "cpu")
    monkeypatch.setattr(orthogonal, "random_case", lambda random, backend: small)
    assert orthogonal.main(["--case", "2"]) == 0
    right = orthogonal.qr

    def wrong(*given: Any, **how: Any) -> Any:
        factors, tau = right(*given, **how)
        return factors, tau * 1.001

    monkeypatch.setattr(orthogonal, "qr", wrong)
    assert orthogonal.main(["--seed", "5"]) == 1
    assert "python -m tests.fuzz.orthogonal --backend cpu --seed 5 --case 0" in capsys.readouterr().out
