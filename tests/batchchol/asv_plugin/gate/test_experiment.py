"""What one process says of a case: crashes, refusals, heat, and the order of calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from batchchol.asv_plugin.gate import cases, experiment
from batchchol.asv_plugin.gate.cases import Case, prepared
from batchchol.asv_plugin.gate.experiment import Calls, Kernels, Tracked, throttled
from batchchol.asv_plugin.gate.outcome import Verdict
from batchchol.asv_plugin.gate.worker import Lost, Refused

COOL, HOT = {"throttle": "idle"}, {"throttle": "idle,hardware_thermal"}
WHERE = {"layout": {}, "batch": 1, "threads": 1, "nrhs": 1, "spec": {}}
Answers = dict[str, Callable[..., Any]]


class FakeWorker(AbstractContextManager["FakeWorker"]):
    """Answers as it is told to; what it was asked is kept, and whether it was closed."""

    def __init__(self, answers: Answers, asked: list[tuple[str, str]]) -> None:
        self._answers, self.asked, self.closed = answers, asked, False

    def ask(self, do: str, limit: float = 600.0, **arguments: Any) -> Any:
        assert not self.closed
        self.asked.append((do, str(arguments.get("key", ""))))
        return self._answers[do](**arguments)

    def __exit__(self, *_: object) -> None:
        self.closed = True


def fails(error: Exception) -> Callable[..., Any]:
    def answer(**_: Any) -> Any:
        raise error

    return answer


class Lab:
    """Begins processes that answer alike."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.answers: Answers = {"check": lambda **_: 0.5, "prepare": lambda **_: "", **answers}
        self.begun: list[FakeWorker] = []
        self.asked: list[tuple[str, str]] = []

    def start(self) -> Any:
        self.begun.append(FakeWorker(self.answers, self.asked))
        return self.begun[-1]

    def both(self) -> tuple[Any, Any]:
        return self.start(), self.start()


def kernel(key: str, code: str = "") -> Case:
    base, head = ({**WHERE, "payload": f"{code or key}-{side}"} for side in ("base", "head"))
    return Case(key, "kernel", base, head)


def call(key: str) -> Case:
    return Case(key, "call", {"kind": "call"}, {"kind": "call"})


def taken(*conditions: dict[str, str]) -> Callable[..., Any]:
    """Measurements that end under these conditions, one after the other."""
    states = iter(conditions)

    def measure(**_: Any) -> dict[str, Any]:
        about = {"before": COOL, "after": next(states)}
        return {"log_ratio": 0.01, "base": 1.0, "head": 1.01, "rounds": 4, "conditions": about}

    return measure


@pytest.mark.parametrize(
    ("said", "unusual"),
    [
        ("", []),
        ("idle", []),
        ("power_cap,application_clocks", []),
        ("hardware_thermal", ["hardware_thermal"]),
        ("power_brake,idle,hardware_thermal", ["hardware_thermal", "power_brake"]),
    ],
)
def test_a_clock_is_unusual_by_heat_or_supply(said: str, unusual: list[str]) -> None:
    assert throttled({"before": {}, "after": {"throttle": said}}) == unusual
    assert throttled({"before": {"throttle": said}, "after": {}}) == unusual


def test_what_was_taken_in_the_heat_is_taken_again() -> None:
    lab = Lab(measure=taken(HOT, COOL))
    (found,) = Kernels(lab.start, "cuda").process([kernel("case")])
    assert [do for do, _ in lab.asked] == ["check", "check", "measure", "measure"]
    assert "throttled" not in found.about
    assert found.about["conditions"]["after"] == COOL


def test_heat_that_stays_is_recorded() -> None:
    lab = Lab(measure=taken(HOT, HOT))
    (found,) = Kernels(lab.start, "cuda").process([kernel("case")])
    assert found.about["throttled"] == ["hardware_thermal"]
    assert not found.failed
    assert found.log_ratio == 0.01


def test_a_kernel_is_checked_once_and_measured_in_each_process() -> None:
    lab = Lab(measure=taken(*[COOL] * 9))
    kernels = Kernels(lab.start, "cpu")
    for _ in range(3):
        assert [found.key for found in kernels.process([kernel("one"), kernel("two")])] == ["one", "two"]
    assert [do for do, _ in lab.asked].count("check") == 4
    assert len(lab.begun) == 3
    assert all(worker.closed for worker in lab.begun)


@pytest.mark.parametrize("side", ["base", "head"])
def test_the_commit_whose_kernel_is_wrong_or_crashes_is_named(side: str) -> None:
    def check(described: dict[str, Any]) -> float:
        if described["payload"] == f"wrong-{side}":
            raise Refused("ResidualError: the ratio is 77")
        if described["payload"] == f"crashes-{side}":
            raise Lost("the process was killed by SIGSEGV")
        return 0.5

    lab = Lab(check=check, measure=taken(*[COOL] * 9))
    found = list(Kernels(lab.start, "cpu").process([kernel(key) for key in ("wrong", "crashes", "good")]))
    assert [each.failed for each in found] == [
        f"{side}: ResidualError: the ratio is 77",
        f"{side}: the process was killed by SIGSEGV",
        "",
    ]
    assert len(lab.begun) == 2, "the one that crashed has a successor"
    assert all(worker.closed for worker in lab.begun)


def test_what_ends_early_leaves_no_process() -> None:
    lab = Lab(measure=taken(*[COOL] * 9))
    for _ in Kernels(lab.start, "cpu").process([kernel("one"), kernel("two")]):
        break
    assert lab.begun
    assert all(worker.closed for worker in lab.begun)


class Clock:
    """Calls of two commits, of which the second one takes so much longer; the first of each round suffers."""

    def __init__(self, ratio: float, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ratio, self._seconds, self.order = ratio, seconds, ""
        monkeypatch.setattr(experiment, "CALL_SECONDS", 0.3)

    def side(self, name: str, factor: float) -> FakeWorker:
        def time(**_: Any) -> dict[str, Any]:
            first = len(self.order) % 4 == 0
            self.order += name
            return {"wall": self._seconds * factor * (1.2 if first else 1), "cpu": self._seconds, "calls": 1}

        return FakeWorker({"prepare": lambda **_: "", "time": time}, [])

    def both(self) -> Any:
        return self.side("A", 1.0), self.side("B", self._ratio)


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.025, 0.036, 0.2])
def test_calls_take_turns_and_what_the_first_suffers_cancels(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.1, seconds, monkeypatch)
    (found,) = Calls(clock.both).process([call("case")])
    rounds = found.about["rounds"]
    assert clock.order == "ABBABAAB" * (rounds // 2)
    assert rounds % 2 == 0
    assert found.log_ratio == pytest.approx(math.log(1.1), abs=1e-3)
    assert found.about["cpu_seconds"] == [seconds, seconds]


@pytest.mark.parametrize(
    ("error", "begun"), [(Refused("ValueError: no"), 2), (Lost("the process was killed by SIGBUS"), 4)]
)
def test_a_call_that_fails_leaves_the_others(error: Exception, begun: int) -> None:
    def time(key: str, seconds: float) -> dict[str, Any]:
        if key == "bad":
            raise error
        return {"wall": 1.0, "cpu": None, "calls": 1}

    lab = Lab(time=time)
    found = list(Calls(lab.both).process([call("bad"), call("good")]))
    assert [each.failed for each in found] == [str(error), ""]
    assert len(lab.begun) == begun
    assert all(worker.closed for worker in lab.begun)


def test_numbers_of_both_commits_are_tracked() -> None:
    numbers = iter([{"value": 2.0, "unit": "bytes"}, {"value": 3.0, "unit": "bytes"}, {"value": 0.0, "unit": ""}] * 2)
    lab = Lab(track=lambda **_: next(numbers))
    found = list(Tracked(lab.both).process([Case(key, "track") for key in ("one", "zero", "none")]))
    assert [(each.base, each.head) for each in found] == [(2, 3), (0, 2), (3, 0)]
    assert [each.log_ratio for each in found] == [pytest.approx(math.log(1.5)), math.inf, -math.inf]
    assert found[0].about == {"unit": "bytes"}


@pytest.mark.parametrize("error", [Refused("ValueError: no"), Lost("it ended")])
def test_a_number_that_fails_leaves_the_others(error: Exception) -> None:
    def track(key: str) -> dict[str, Any]:
        if key == "bad":
            raise error
        return {"skipped": "no such unroll"} if key == "skipped" else {"value": 1.0, "unit": "bytes"}

    found = list(Tracked(Lab(track=track).both).process([Case(key, "track") for key in ("bad", "good", "skipped")]))
    assert [each.failed for each in found] == [str(error), "", ""]
    assert found[2].about == {"skipped": ["no such unroll"] * 2}


def test_calls_that_a_commit_cannot_prepare_are_decided() -> None:
    def side(**why: str | Exception) -> Any:
        def prepare(key: str) -> str:
            said = why.get(key, "")
            if isinstance(said, Exception):
                raise said
            return said

        return FakeWorker({"prepare": prepare}, [])

    base = side(both="no GPU", new="no such layout")
    head = side(both="no GPU", gone="no such layout", wrong=Refused("ResidualError: 77"), crash=Lost("SIGSEGV"))
    found = [prepared(call(key), base, head) for key in ("fine", "both", "new", "gone", "wrong", "crash")]
    assert [case.outcome and (case.outcome.verdict, case.outcome.why) for case in found] == [
        None,
        (Verdict.SKIPPED, "no GPU"),
        (Verdict.NEW, "the base cannot run it: no such layout"),
        (Verdict.GONE, "the head cannot run it: no such layout"),
        (Verdict.FAILED, "head: ResidualError: 77"),
        (Verdict.FAILED, "head: SIGSEGV"),
    ]
    assert prepared(kernel("other"), base, head).outcome is None


DESCRIBED = {"kind": "kernel", **WHERE, "lanes": 8, "launch": None, "entry": "f", "text_sha256": "a", "flags": []}


def commits(base: dict[str, Any], head: dict[str, Any], broken: dict[str, str] | None = None) -> Any:
    """Two commits that say this of themselves, the same folder their checkout; `broken` does not compile in head."""
    sides = [
        FakeWorker({"describe": lambda said=said, **_: said, "build": lambda fails=fails, **_: fails}, [])
        for said, fails in ((base, {}), (head, broken or {}))
    ]
    return cases.Commits(*sides, ("a", "a"), ("cache", "cache"))  # type: ignore[arg-type]


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code is that of the source without what is in brackets; calls are not alike."""

    def find(_: object, described: dict[str, Any]) -> Any:
        return cases.proof.Code(described["text_sha256"], described["text_sha256"].partition("(")[0])

    monkeypatch.setattr(cases.proof, "find_code", find)
    monkeypatch.setattr(cases.proof, "read_records", lambda _: {})
    monkeypatch.setattr(cases.proof, "calls_alike", lambda *_: False)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "the same source, flags and compiler"),
        ({"text_sha256": "a(comment)"}, "other source, the same machine code"),
        ({"text_sha256": "b"}, ""),
        ({"text_sha256": "a(comment)", "launch": {"threads": 32}}, ""),
        ({"text_sha256": "a(comment)", "batch": 2}, ""),
        ({"layout": {"kind": "chunked"}}, ""),
        ({"threads": 2}, ""),
    ],
)
def test_a_kernel_is_unchanged_by_its_source_or_its_code(changed: dict[str, Any], why: str) -> None:
    (case,) = cases.find(commits({"case": DESCRIBED}, {"case": {**DESCRIBED, **changed}}), prove=True)
    assert (case.outcome.why if case.outcome else "") == why
    if not why:
        assert case.head["payload"]
    (measured,) = cases.find(commits({"case": DESCRIBED}, {"case": {**DESCRIBED, **changed}}), prove=False)
    assert measured.outcome is None


@pytest.mark.usefixtures("code")
def test_what_only_one_commit_has_or_can_build_is_told() -> None:
    skipped, fails = {"kind": "kernel", "skipped": "no such target"}, {"kind": "kernel", "failed": "KeyError: 'n'"}
    new = {**DESCRIBED, "text_sha256": "b"}
    base = {
        "gone": DESCRIBED,
        "skipped": skipped,
        "now": skipped,
        "broken": DESCRIBED,
        "odd": DESCRIBED,
        "x": DESCRIBED,
    }
    head = {"new": DESCRIBED, "skipped": skipped, "now": new, "broken": new, "odd": fails, "x": new}
    found = cases.find(commits(base, head, {"broken": "compile: expected ;"}), prove=True)
    assert {case.key: case.outcome and (case.outcome.verdict.value, case.outcome.why) for case in found} == {
        "gone": ("gone", "the head has no such case"),
        "new": ("new", "the base has no such case"),
        "skipped": ("skipped", "no such target"),
        "now": ("new", "the base cannot run it: no such target"),
        "broken": ("failed", "compile: expected ;"),
        "odd": ("failed", "KeyError: 'n'"),
        "x": None,
    }
