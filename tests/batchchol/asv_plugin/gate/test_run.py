"""A gate's verdicts by experiments that are none: what is measured, how often, and what is made of it."""

from __future__ import annotations

import errno
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol.asv_plugin.gate import journal
from batchchol.asv_plugin.gate import measuring as gate
from batchchol.asv_plugin.gate.cases import CONTROLS, Case
from batchchol.asv_plugin.gate.experiment import Found
from batchchol.asv_plugin.gate.history import Control, History
from batchchol.asv_plugin.gate.measuring import FIRST, FRESH
from batchchol.asv_plugin.gate.outcome import Answer, Outcome, Verdict
from batchchol.asv_plugin.gate.run import Prepared, ahead, judge
from batchchol.asv_plugin.gate.settings import Settings
from batchchol.errors import DataFileError

WHERE = {"layout": {}, "batch": 1, "threads": 1, "nrhs": 1, "spec": {}}
# The ratio of a case's n-th process; or why it failed.
Ratio = Callable[[int], float | str]


@dataclass
class Lab:
    """Experiments whose results are given, in place of those of processes."""

    ratios: dict[str, Ratio]
    numbers: dict[str, tuple[float, float, str]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    processes: int = 0
    # An event after that number of requests.
    interrupt: tuple[int, BaseException] | None = None
    now: float = 0.0

    def process(self, cases: Sequence[Case]) -> Iterator[Found]:
        self.processes += 1
        for case in cases:
            if self.interrupt is not None and self.asked.total() == self.interrupt[0]:
                raise self.interrupt[1]
            self.asked[case.key] += 1
            self.now += 1
            yield self.found(case)

    def found(self, case: Case) -> Found:
        if case.kind == "track":
            base, head, unit = self.numbers[case.key]
            log_ratio = math.log(head / base)
            return Found(case.key, log_ratio, base, head, about={"unit": unit})
        ratio = self.ratios[case.key](self.asked[case.key])
        if isinstance(ratio, str):
            return Found(case.key, failed=ratio)
        return Found(case.key, math.log(ratio), 1e-6, ratio * 1e-6)


def about(ratio: float, spread: float = 0.001) -> Ratio:
    """Processes evenly about a ratio."""
    return lambda turn: ratio * math.exp(spread * (-1.5, 0.5, 1.0, -0.25, 1.5, -1.0, 0.25, -0.5)[turn % 8])


def kernel(key: str, code: str = "", outcome: Outcome | None = None) -> Case:
    side = {**WHERE, "payload": code or key, "kind": "kernel"}
    return Case(key, "kernel", side, side, outcome)


def call(key: str) -> Case:
    return Case(key, "call", {"kind": "call"}, {"kind": "call"})


def track(key: str) -> Case:
    return Case(key, "track", {"kind": "track"}, {"kind": "track"})


@dataclass
class Gate:
    """One gate after the other, in a folder of their own."""

    folder: Path
    patch: pytest.MonkeyPatch
    controls: list[Control] = field(default_factory=list)

    def settings(self, **options: Any) -> Settings:
        return Settings(
            self.folder, **{"base": "a" * 40, "head": "b" * 40, "profile": "ci", "backend": "cpu"} | options
        )

    def __call__(self, lab: Lab, cases: list[Case], noise: History | None = None, **options: Any) -> Answer:
        for name in ("Kernels", "Calls", "Tracked"):
            self.patch.setattr(gate, name, lambda *_: lab)
        self.patch.setattr(gate.time, "monotonic", lambda: lab.now)
        prepared = Prepared(cases, None, None, 0.0)  # type: ignore[arg-type]
        answer, self.controls = judge(self.settings(**options), prepared, {}, noise or History(), lambda _: None)
        return answer

    @property
    def journals(self) -> list[Path]:
        return sorted(self.folder.rglob("*.jsonl"))


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """judged(lab, cases): the answer of a gate."""
    return Gate(tmp_path, monkeypatch)


def verdicts(answer: Answer) -> dict[str, str]:
    return {outcome.key: outcome.verdict.name for outcome in answer.outcomes}


def test_a_slowdown_counts_once_fresh_processes_find_it_again(judged: Gate) -> None:
    lab = Lab({"slow": about(1.05), "same": about(1.0), "fast": about(0.9)})
    answer = judged(lab, [kernel("slow"), kernel("same"), kernel("fast")])
    assert verdicts(answer) == {"slow": "SLOWER", "same": "SAME", "fast": "FASTER"}
    assert answer.status == 1
    assert lab.asked == {"slow": FIRST["kernel"] + FRESH["kernel"], "same": 8, "fast": 8 + FRESH["kernel"]}
    slow = answer.outcomes[0]
    assert slow.ratio == pytest.approx(1.05, rel=0.002)
    assert slow.low is not None
    assert slow.low < 1.05 < (slow.high or 0)
    assert len(slow.log_ratios) == lab.asked["slow"]


def test_a_throttled_gpu_is_told_of(judged: Gate) -> None:
    lab = Lab({"hot": about(1.0), "cool": about(1.0)})
    plain = Lab.found

    def found(lab: Lab, case: Case) -> Found:
        hot = case.key == "hot" and lab.asked["hot"] % 4 == 0
        return replace(plain(lab, case), about={"throttled": ["hardware_thermal"]} if hot else {})

    judged.patch.setattr(Lab, "found", found)
    answer = judged(lab, [kernel("hot"), kernel("cool")])
    assert {each.key: (each.verdict, each.why) for each in answer.outcomes} == {
        "hot": (Verdict.SAME, "the GPU's clock was held down in 2 of 8 processes: hardware_thermal"),
        "cool": (Verdict.SAME, ""),
    }
    assert answer.status == 0


def test_calls_are_found_again_by_more_processes(judged: Gate) -> None:
    lab = Lab({"call": about(1.2)})
    assert verdicts(judged(lab, [call("call")])) == {"call": "SLOWER"}
    assert lab.asked["call"] == FIRST["call"] + FRESH["call"]


def test_a_discovery_that_is_not_found_again_counts_with_the_rest(judged: Gate) -> None:
    chance, equal = about(1.02), about(1.0)
    lab = Lab({"case": lambda turn: (chance if turn <= FIRST["kernel"] else equal)(turn)})
    answer = judged(lab, [kernel("case")])
    assert verdicts(answer) == {"case": "SAME"}
    assert answer.status == 0
    assert len(answer.outcomes[0].log_ratios) == lab.asked["case"] >= FIRST["kernel"] + FRESH["kernel"]


@pytest.mark.parametrize(
    ("budget", "why"),
    [(0, "the budget ended before it was measured"), (3, "the budget ended after too few processes")],
)
def test_what_the_budget_does_not_decide_is_undecided(judged: Gate, budget: float, why: str) -> None:
    answer = judged(Lab({"case": about(1.5)}), [kernel("case")], budget=budget)
    assert verdicts(answer) == {"case": "UNDECIDED"}
    assert answer.outcomes[0].why == why
    assert answer.outcomes[0].low is None
    assert answer.status == 3


def test_a_discovery_without_time_to_find_it_again_is_undecided(judged: Gate) -> None:
    answer = judged(Lab({"case": about(1.5)}), [kernel("case")], budget=FIRST["kernel"])
    assert verdicts(answer) == {"case": "UNDECIDED"}
    assert answer.outcomes[0].ratio == pytest.approx(1.5, rel=0.01)


def test_noise_is_measured_again_until_it_is_decided(judged: Gate) -> None:
    lab = Lab({"noisy": about(1.0, 0.02), "quiet": about(1.0)})
    assert verdicts(judged(lab, [kernel("noisy"), kernel("quiet")])) == {"noisy": "SAME", "quiet": "SAME"}
    assert lab.asked["noisy"] > lab.asked["quiet"] == FIRST["kernel"]


def test_what_this_machine_is_known_for_is_no_change(judged: Gate) -> None:
    known = History(tuple(Control("", "", "case", "kernel", each, 0.01, 8, False) for each in (0.04, -0.04, 0.05)))
    assert verdicts(judged(Lab({"case": about(1.05)}), [kernel("case")], known)) == {"case": "SAME"}


@pytest.mark.parametrize("turn", [1, 5, FIRST["kernel"] + 1])
def test_a_failure_leaves_the_others_decided(judged: Gate, turn: int) -> None:
    def broken(process: int) -> float | str:
        return "head: the process was killed by SIGSEGV" if process == turn else about(1.5)(process)

    lab = Lab({"broken": broken, "slow": about(1.1), "same": about(1.0)})
    answer = judged(lab, [kernel("broken"), kernel("slow"), kernel("same")])
    assert verdicts(answer) == {"broken": "FAILED", "slow": "SLOWER", "same": "SAME"}
    assert answer.outcomes[0].why == "head: the process was killed by SIGSEGV"
    assert lab.asked["broken"] == turn
    assert answer.status == 2


@pytest.mark.parametrize(
    ("base", "head", "unit", "verdict"),
    [
        (100.0, 100.0, "bytes", "SAME"),
        (100.0, 101.0, "bytes", "SLOWER"),
        (100.0, 99.0, "bytes", "FASTER"),
        (1.0, 1.25, "seconds", "SAME"),
        (1.0, 1.5, "seconds", "SLOWER"),
        (1.0, 1.9, "ratio", "SAME"),
    ],
)
def test_tracked_numbers_are_compared_as_they_are(
    judged: Gate, base: float, head: float, unit: str, verdict: str
) -> None:
    lab = Lab({}, {"number": (base, head, unit)})
    answer = judged(lab, [track("number")])
    assert verdicts(answer) == {"number": verdict}
    assert (answer.outcomes[0].base_seconds, answer.outcomes[0].head_seconds) == (base, head)
    assert lab.asked["number"] == 1


@pytest.mark.parametrize(("lacking", "verdict"), [(["a", "a"], "SKIPPED"), (["a", ""], "NEW"), (["", "a"], "GONE")])
def test_a_number_that_a_commit_cannot_have_is_no_failure(judged: Gate, lacking: list[str], verdict: str) -> None:
    lab = Lab({})
    judged.patch.setattr(Lab, "found", lambda _, case: Found(case.key, about={"skipped": lacking}))
    answer = judged(lab, [track("number")])
    assert (verdicts(answer), answer.outcomes[0].why) == ({"number": verdict}, "a")


def test_cases_that_are_measured_alike_share_one_measurement(judged: Gate) -> None:
    lab = Lab({"one": about(1.1), "two": about(1.0), "other": about(1.0)})
    answer = judged(lab, [kernel("one", "code"), kernel("two", "code"), kernel("other")])
    assert verdicts(answer) == {"one": "SLOWER", "two": "SLOWER", "other": "SAME"}
    assert "two" not in lab.asked
    assert answer.outcomes[0].log_ratios == answer.outcomes[1].log_ratios


def test_what_is_proven_is_not_measured_but_for_controls(judged: Gate) -> None:
    unchanged = [kernel(f"u{each}", outcome=Outcome(f"u{each}", "kernel", Verdict.UNCHANGED)) for each in range(9)]
    lab = Lab({"slow": about(1.1)} | {case.key: about(1.0) for case in unchanged})
    answer = judged(lab, [kernel("slow"), *unchanged])
    assert Counter(verdicts(answer).values()) == {"SLOWER": 1, "UNCHANGED": 9}
    assert len(judged.controls) == CONTROLS
    assert {each.key for each in judged.controls} < {case.key for case in unchanged}
    assert not any(each.alarm for each in judged.controls)
    assert answer.resolution.controls == CONTROLS


def test_a_control_that_seems_slower_is_a_false_alarm(judged: Gate) -> None:
    unchanged = kernel("equal", outcome=Outcome("equal", "kernel", Verdict.UNCHANGED))
    answer = judged(Lab({"case": about(1.0), "equal": about(1.1)}), [kernel("case"), unchanged])
    assert verdicts(answer) == {"case": "SAME", "equal": "UNCHANGED"}
    assert [each.alarm for each in judged.controls] == [True]
    assert (answer.resolution.alarms, answer.status) == (1, 0)


def test_a_commit_against_itself_is_all_controls(judged: Gate) -> None:
    lab = Lab({"one": about(1.0), "call": about(1.0)})
    judged(lab, [kernel("one"), call("call")], base="c" * 40, head="c" * 40, prove=False)
    assert [(each.key, each.kind, each.commit) for each in judged.controls] == [
        ("one", "kernel", "c" * 40),
        ("call", "call", "c" * 40),
    ]


def test_without_a_gpu_what_changed_is_undecided_and_not_measured(judged: Gate) -> None:
    lab = Lab({})
    unchanged = kernel("equal", outcome=Outcome("equal", "kernel", Verdict.UNCHANGED))
    answer = judged(lab, [kernel("changed"), unchanged], arch="sm_90", backend="cuda")
    assert verdicts(answer) == {"changed": "UNDECIDED", "equal": "UNCHANGED"}
    assert (answer.status, lab.processes) == (3, 0)


@pytest.mark.parametrize(
    ("options", "outcome", "ahead_of_time"),
    [
        ({"backend": "cuda"}, None, True),
        ({"backend": "cuda"}, Outcome("case", "kernel", Verdict.UNCHANGED), False),
        ({"backend": "cuda", "arch": "sm_90"}, None, False),
        ({"backend": "cpu"}, None, False),
    ],
)
def test_only_what_measures_a_gpu_is_begun_ahead(
    judged: Gate, options: dict[str, str], outcome: Outcome | None, ahead_of_time: bool
) -> None:
    class Begun:
        closed = False

        def close(self) -> None:
            self.closed = True

    begun: list[Begun] = []

    def start() -> Any:
        begun.append(Begun())
        return begun[-1]

    prepared = Prepared([kernel("case", outcome=outcome)], start, None, 0.0)  # type: ignore[arg-type]
    with ahead(judged.settings(**options), prepared) as ready:
        assert (ready.pair is not start) == ahead_of_time
        first = ready.pair()
    assert [each.closed for each in begun] == [each is not first for each in begun]


THREE = ("slow", "same", "other")


def three() -> dict[str, Ratio]:
    return {"slow": about(1.1), "same": about(1.0), "other": about(1.0)}


@pytest.mark.parametrize("after", [0, 1, 10, 24, 30])
@pytest.mark.parametrize("torn", [b"", b'{"fresh": false, "key": "sl', b"\xff\xfe", b"[]"])
def test_a_gate_goes_on_where_it_was_interrupted(judged: Gate, after: int, torn: bytes) -> None:
    whole, cases = Lab(three()), [kernel(key) for key in THREE]
    expected = judged(whole, cases)
    journal.forget(judged.settings())
    first = Lab(three(), interrupt=(after, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        judged(first, cases)
    (path,) = judged.journals
    assert len(path.read_text().splitlines()) == first.asked.total() == after
    path.write_bytes(path.read_bytes() + torn)
    second = Lab(three(), asked=first.asked.copy(), interrupt=(after + 2, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        judged(second, cases)
    third = Lab(three(), asked=second.asked.copy())
    answer = judged(third, cases)
    assert third.asked == whole.asked, "nothing is measured twice"
    assert answer.outcomes == expected.outcomes
    journal.forget(judged.settings())
    assert not judged.journals


def test_another_gate_has_another_journal(judged: Gate) -> None:
    cases = [kernel(key) for key in THREE]
    judged(Lab(three()), cases)
    for options in ({"head": "d" * 40}, {"bench": "s"}, {"profile": "full"}, {"prove": False}):
        lab = Lab(three())
        judged(lab, cases, **options)
        assert lab.asked.total() > 0
    again = Lab(three())
    judged(again, cases)
    assert again.asked.total() == 0


def test_a_full_disk_is_told_of_and_what_was_written_stays(judged: Gate) -> None:
    lab, noted = Lab(three()), journal.Journal.note

    def full(self: journal.Journal, found: Found, *, fresh: bool) -> None:
        if lab.asked.total() > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        noted(self, found, fresh=fresh)

    judged.patch.setattr(journal.Journal, "note", full)
    with pytest.raises(DataFileError, match=r"\.jsonl: writing: No space left on device"):
        judged(lab, [kernel(key) for key in THREE])
    (path,) = judged.journals
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == [
        "slow",
        "same",
        "other",
        "slow",
        "same",
    ]


def test_equal_code_is_almost_never_called_changed(judged: Gate) -> None:
    """Ten gates of twenty equal cases, at other noise each: chance alone decides, at a level that is promised."""
    rng, flagged = np.random.default_rng(3), 0
    for turn in range(10):
        scale = {f"{case}": rng.uniform(0.001, 0.02) for case in range(20)}
        lab = Lab({key: lambda _, sd=sd: float(np.exp(sd * rng.standard_t(4))) for key, sd in scale.items()})
        answer = judged(lab, [kernel(key) for key in scale], head=f"{turn:040}")
        flagged += any(each in ("SLOWER", "FASTER") for each in verdicts(answer).values())
    assert flagged <= 1
