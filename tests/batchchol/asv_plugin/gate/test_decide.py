"""Verdicts: exact where the numbers are few, rates where they are drawn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.asv_plugin.gate.decide import (
    MOST,
    Decision,
    Evidence,
    confirmed,
    decide,
    further,
    promising,
    resolution,
    threshold,
)
from batchchol.asv_plugin.gate.estimate import estimate
from batchchol.asv_plugin.gate.outcome import Verdict

SPREAD = (-1.5, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 1.5)


def case(ratio: float, sd: float = 0.002, key: str = "case", limit: float = 0.01, times: int = 1) -> Evidence:
    """Eight processes, or several times as many, evenly about a ratio."""
    return Evidence(key, tuple(math.log(ratio) + sd * each for each in SPREAD * times), limit)


def only(evidence: Evidence) -> Decision:
    (decision,) = decide([evidence])
    return decision


def noise(rng: np.random.Generator, sds: Sequence[float], processes: int) -> NDArray[np.float64]:
    """One process in twenty has five times the spread; some of it is common to all cases of a process."""
    shape = len(sds), processes
    own = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.05, 5, 1) * np.array(sds)[:, None]
    common: NDArray[np.float64] = own + 0.3 * np.median(sds) * rng.standard_normal(processes)
    return common


def drawn(
    rng: np.random.Generator, sds: Sequence[float], processes: int, kind: str, slow: Sequence[float]
) -> list[Evidence]:
    values = noise(rng, sds, processes) + np.log1p(np.array(slow))[:, None]
    return [Evidence(str(index), tuple(row), threshold(kind, None)) for index, row in enumerate(values)]


@pytest.mark.parametrize(
    ("ratio", "sd", "verdict"),
    [
        (1.0, 0.002, Verdict.SAME),
        (1.05, 0.002, Verdict.SLOWER),
        (1 / 1.05, 0.002, Verdict.FASTER),
        (1.0, 0.03, Verdict.UNDECIDED),
        (1.05, 0.1, Verdict.UNDECIDED),
        # Between the threshold and twice it both are true: it is slower, and that is looked at first.
        (1.015, 0.001, Verdict.SLOWER),
        (1.009, 0.002, Verdict.SAME),
    ],
)
def test_a_case_gets_the_verdict_of_its_interval(ratio: float, sd: float, verdict: Verdict) -> None:
    decision = only(case(ratio, sd))
    assert decision.verdict is verdict
    assert decision.low < decision.ratio < decision.high
    assert decision.ratio == pytest.approx(ratio)


def test_the_interval_is_students_where_nothing_is_clipped() -> None:
    values = np.array(SPREAD)
    decision = only(Evidence("case", tuple(values * 0.01), 0.01))
    half = 3.4994832973504937 * 0.01 * values.std(ddof=1) / math.sqrt(8)
    assert (decision.low, decision.high) == pytest.approx((math.exp(-half), math.exp(half)))


def test_an_outlier_moves_neither_the_ratio_nor_the_verdict() -> None:
    quiet = case(1.05, times=2)
    outlying = dataclasses.replace(quiet, log_ratios=(*quiet.log_ratios[:-1], 1.0))
    assert only(outlying).verdict is Verdict.SLOWER
    assert only(outlying).ratio == pytest.approx(1.05, abs=0.0005)
    assert estimate(outlying.log_ratios).freedom < estimate(quiet.log_ratios).freedom


def test_an_exact_number_is_decided_without_any_spread() -> None:
    assert only(Evidence("track", (0.0,) * 4, 0.03)).verdict is Verdict.SAME
    assert only(Evidence("track", (math.log(1.2),) * 4, 0.03)).verdict is Verdict.SLOWER


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_too_few_processes_decide_nothing(processes: int) -> None:
    decision = only(Evidence("case", (0.5,) * processes, 0.01))
    assert (decision.verdict, decision.low, decision.high) == (Verdict.UNDECIDED, 0.0, math.inf)


def test_chance_is_shared_among_the_cases() -> None:
    lone = case(1.03, 0.013)
    assert only(lone).verdict is Verdict.SLOWER
    among = decide([lone, *(case(1.0, key=str(index)) for index in range(59))])
    assert [each.verdict for each in among] == [Verdict.UNDECIDED] + [Verdict.SAME] * 59


def test_nothing_is_decided_of_nothing() -> None:
    assert decide([]) == []


def test_a_discovery_must_be_found_again_in_its_own_direction() -> None:
    slower, same, faster = (only(case(ratio)) for ratio in (1.05, 1.0, 1 / 1.05))
    found = [confirmed(slower, case(ratio)) for ratio in (1.04, 1.0, 1 / 1.04)]
    assert found == [True, False, False]
    found = [confirmed(faster, case(ratio)) for ratio in (1.04, 1.0, 1 / 1.04)]
    assert found == [False, False, True]
    assert not confirmed(same, case(1.05))


def test_a_change_is_the_larger_of_the_floor_and_twice_the_noise() -> None:
    assert (threshold("kernel", None), threshold("kernel", 0.004), threshold("call", 0.004)) == (0.01, 0.01, 0.03)
    assert threshold("kernel", 0.02) == pytest.approx(math.exp(0.04) - 1)


def test_the_predicted_number_of_processes_decides() -> None:
    for ratio, sd in ((1.0, 0.02), (1.05, 0.07), (1 / 1.05, 0.07)):
        few = case(ratio, sd)
        more = further(few, 0.05)
        assert 0 < more < MOST - 8
        rounds = -(-(more + 8) // 8)
        assert only(few).verdict is Verdict.UNDECIDED
        assert only(case(ratio, sd, times=rounds)).verdict is not Verdict.UNDECIDED
    assert further(case(1.01, 0.2), 0.05) == MOST - 8
    assert further(Evidence("new", (), 0.01), 0.05) == 4
    # Student's t: 3.169 × 0.00713 × √(8 / 11) is below log 1.02, and 3.250 × 0.00713 × √(8 / 10) is not.
    assert further(case(1.0, 0.02), 0.05) == 11 - 8


def test_the_most_promising_come_first_and_fit() -> None:
    decisions = decide(
        [case(1.0, 0.03, "wide"), case(1.0, 0.02, "narrow"), case(1.0, 0.001, "done"), case(1.0, 0.02, "slow")]
    )
    seconds = {"wide": 1.0, "narrow": 1.0, "done": 1.0, "slow": 100.0}
    assert promising(decisions, seconds, 1e6) == ["narrow", "wide", "slow"]
    alone = further(decisions[1].evidence, 0.05 / 4)
    assert promising(decisions, seconds, alone) == ["narrow"]
    assert promising(decisions, seconds, alone - 0.5) == []


def test_the_resolution_is_that_of_the_middle_case() -> None:
    decisions = decide([case(1.0, sd) for sd in (0.001, 0.005, 0.1)])
    middle = resolution(decisions, 3)
    assert middle is not None
    assert middle == resolution(decisions[1:2], 3)
    assert resolution(decisions[:1], 3) < middle < resolution(decisions[2:], 3)  # type: ignore[operator]
    assert resolution(decisions, 60) > middle  # type: ignore[operator]
    assert resolution([], 60) is None
    assert resolution(decide([Evidence("new", (), 0.01)]), 60) is None


def test_a_slowdown_of_the_resolution_is_found_with_its_power() -> None:
    rng = np.random.default_rng(7)
    resolved = resolution(decide([case(1.0, 0.01, times=2)]), 1)
    assert resolved is not None
    sd = estimate(case(1.0, 0.01, times=2).log_ratios).error * 4
    values = rng.normal(math.log1p(resolved), sd, (300, 16))
    found = sum(only(Evidence("case", tuple(row), 0.01)).verdict is Verdict.SLOWER for row in values)
    assert 0.7 <= found / 300 <= 0.88


@pytest.mark.parametrize(
    ("kind", "low", "high", "processes"), [("kernel", 0.002, 0.015, 8), ("call", 0.02, 0.08, 16)]
)
def test_equal_code_raises_no_alarm(kind: str, low: float, high: float, processes: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(4):
        sds = list(np.exp(rng.uniform(math.log(low), math.log(high), 60)))
        verdicts = [each.verdict for each in decide(drawn(rng, sds, processes, kind, [0.0] * 60))]
        assert set(verdicts) <= {Verdict.SAME, Verdict.UNDECIDED}
        assert verdicts.count(Verdict.SAME) >= 30


@pytest.mark.parametrize(
    ("kind", "sd", "slow", "processes", "rate"),
    [("kernel", 0.01, 0.03, 16, 0.95), ("kernel", 0.01, 0.05, 16, 0.99), ("call", 0.05, 0.10, 24, 0.95)],
)
def test_planted_slowdowns_are_found_and_found_again(
    kind: str, sd: float, slow: float, processes: int, rate: float
) -> None:
    rng, found = np.random.default_rng(3), 0
    for _ in range(2):
        planted = [slow] * 30 + [0.0] * 30
        first, fresh = (drawn(rng, [sd] * 60, processes, kind, planted) for _ in range(2))
        decisions = decide(first)
        found += sum(map(confirmed, decisions[:30], fresh[:30]))
        assert not any(map(confirmed, decisions[30:], fresh[30:]))
    assert found >= rate * 60


@pytest.mark.parametrize("processes", [4, 8, 16])
def test_at_the_border_of_a_change_the_level_holds(processes: int) -> None:
    rng = np.random.default_rng(5)
    values = [noise(rng, [0.01], processes)[0] for _ in range(400)]
    found = sum(Evidence("case", tuple(row), 0.0).slower <= 0.05 for row in values)
    # Of 400 at a level of 0.05: 20, and a standard deviation of 4.4.
    assert 8 <= found <= 32
