"""Histories of cases: planted changes are found where they are, and equal code is not blamed."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from batchchol.asv_plugin.history.cases import Machine, machines
from batchchol.asv_plugin.history.change_points import change_points
from batchchol.asv_plugin.history.store import opened
from batchchol.asv_plugin.results import ResultRow
from tests.batchchol.asv_plugin.history.results import result, series


def machine_of(rows: Sequence[ResultRow], folder: Path) -> Machine:
    """What the store makes of some results."""
    with opened(folder / "history.sqlite") as store:
        store.add(rows)
        (machine,) = machines(store.measurements())
    return machine


def noisy(count: int, seed: int, level: float = 1.0) -> list[float]:
    return list(level * 1e-9 * np.exp(np.random.default_rng(seed).normal(0, 0.01, count)))


def test_planted_changes_are_found_where_they_are() -> None:
    found = [change_points([*noisy(20, seed), *noisy(10, seed + 1000, 1.05)], 0.01) for seed in range(40)]
    places = [[change.index for change in changes] for changes in found]
    assert sum(any(abs(index - 20) <= 1 for index in each) for each in places) >= 39
    assert np.median([changes[-1].ratio for changes in found if changes]) == pytest.approx(1.05, abs=0.01)
    assert sum(len(each) for each in places) <= 50


def test_equal_code_rarely_changes() -> None:
    assert sum(bool(change_points(noisy(30, seed), 0.01)) for seed in range(60)) <= 6
    assert change_points([1e-9], 0.01) == []


def test_states_say_what_to_look_at(tmp_path: Path) -> None:
    steady = [1e-9, 1.001e-9] * 4
    rows = [
        *series(steady, n=1),
        *series([*steady[:6], 1.3e-9, 1.31e-9], n=2),
        *series([*steady[:6], 0.7e-9, 0.71e-9], n=3),
        *series([*steady[:6], 1.3e-9, 1.31e-9], n=4, kernels="aaaaaaaa"),
        *series([*steady[:7], math.nan], n=5),
        *series([1.3e-9, *steady[1:]], n=6),
    ]
    cases = {case.params["n"]: case for case in machine_of(rows, tmp_path).cases}
    states = {n: case.state for n, case in cases.items()}
    assert states == {1: "steady", 2: "slower", 3: "faster", 4: "undecided", 5: "failed", 6: "steady"}
    assert cases[2].news
    assert cases[2].known[cases[2].news.index].commit.short == "07" * 4
    assert cases[2].news.ratio == pytest.approx(1.305, rel=0.01)
    assert [change.index for change in cases[6].changes] == [1]
    assert cases[1].label == "n = 1"
    assert cases[1].fixed == "backend = cuda, dtype = float32"


def test_what_equal_code_differs_by_hides_changes_of_that_size(tmp_path: Path) -> None:
    medians = [1e-9, 1.08e-9, 0.95e-9, 1.06e-9, 0.97e-9, 1.09e-9]
    same = machine_of(series(medians, kernels="aaaaaa"), tmp_path).cases[0]
    assert same.noise > 0.05
    assert same.state == "flaky"
    assert not same.changes


def test_runs_of_a_commit_make_one_number(tmp_path: Path) -> None:
    rows = [result(1, median, kernel="a", night=night) for night, median in enumerate([1e-9, 1.2e-9, 1.1e-9])]
    (number,) = machine_of(rows, tmp_path).cases[0].numbers
    assert number.median == 1.1e-9
    assert number.low <= 1e-9
    assert number.high >= 1.2e-9
    assert len(number.runs) == 3


def test_commits_that_left_a_case_out_stay_on_its_axis(tmp_path: Path) -> None:
    rows = [*series([1e-9, 1e-9, 1e-9], n=1), result(2, 2e-9, n=2)]
    machine = machine_of(rows, tmp_path)
    lonely = next(case for case in machine.cases if case.params["n"] == 2)
    assert len(lonely.commits) == len(machine.commits) == 3
    assert lonely.at(machine.commits[0]) is None
    assert datetime.date.fromisoformat(machine.commits[0].date) == datetime.date(2026, 11, 2)
