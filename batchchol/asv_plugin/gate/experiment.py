"""Measuring cases, a process at a time: kernels of both commits in one, calls in one of each commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from batchchol.asv_plugin.gate.cases import Case
from batchchol.asv_plugin.gate.estimate import both_times
from batchchol.asv_plugin.gate.worker import Lost, Refused, Worker

# Of a case in one process. A GPU's clock tells more in less.
SECONDS = {"cpu": 0.2, "cuda": 0.05}
CALL_SECONDS = 0.3
# Turns of a call take about as long, and are at least one call.
TURN_SECONDS = 0.01
# No case takes longer in one process, its data and check included.
LIMIT_SECONDS = 180.0
# Why a GPU's clock may be where it is without anything being wrong.
USUAL = {"idle", "power_cap", "application_clocks", ""}


@dataclass(frozen=True)
class Found:
    """What one process says of a case: the log ratio, median times of both; or why there is none."""

    key: str
    log_ratio: float = 0.0
    base: float = 0.0
    head: float = 0.0
    failed: str = ""
    about: dict[str, Any] = field(default_factory=dict)


class Experiment(Protocol):
    """Measures cases of one kind."""

    def process(self, cases: Sequence[Case]) -> Iterator[Found]:
        """What fresh processes say of each case, as it comes."""


@dataclass(frozen=True)
class Kernels:
    """Both commits' machine code in one process; `start` makes one."""

    start: Callable[[], Worker]
    backend: str
    checked: set[str] = field(default_factory=set)

    def process(self, cases: Sequence[Case]) -> Iterator[Found]:
        """A process for all of them, and another after one that crashed."""
        with ExitStack() as stack:
            worker = stack.enter_context(self.start())
            for case in cases:
                try:
                    yield self._measured(worker, case)
                except Refused as error:
                    yield Found(case.key, failed=str(error))
                except Lost as error:
                    yield Found(case.key, failed=str(error))
                    worker = stack.enter_context(self.start())

    def _measured(self, worker: Worker, case: Case) -> Found:
        sides = {"base": case.base, "head": case.head}
        about: dict[str, Any] = {}
        if case.identity not in self.checked:
            about["ratios"] = [_checked(worker, name, side) for name, side in sides.items()]
            self.checked.add(case.identity)
        for _ in range(2):
            taken = worker.ask("measure", LIMIT_SECONDS, **sides, seconds=SECONDS[self.backend])
            if not throttled(taken["conditions"]):
                break
        about |= {"rounds": taken["rounds"], "conditions": taken["conditions"]}
        if reasons := throttled(taken["conditions"]):
            about["throttled"] = reasons
        return Found(case.key, taken["log_ratio"], taken["base"], taken["head"], about=about)


def _checked(worker: Worker, name: str, described: Mapping[str, Any]) -> float:
    try:
        return float(worker.ask("check", LIMIT_SECONDS, described=described))
    except (Refused, Lost) as error:
        raise type(error)(f"{name}: {error}") from error


def throttled(conditions: dict[str, dict[str, Any]]) -> list[str]:
    """Why a GPU's clock was held down by what is not usual: heat, or its supply; empty if it was not."""
    said = (reason for state in conditions.values() for reason in str(state.get("throttle", "")).split(","))
    return sorted(set(said) - USUAL)


@dataclass(frozen=True)
class Calls:
    """A fresh process of each commit, calls in turn; `start` makes both."""

    start: Callable[[], tuple[Worker, Worker]]

    def process(self, cases: Sequence[Case]) -> Iterator[Found]:
        """A pair of processes for all of them, and another after one that crashed."""
        with ExitStack() as stack:
            base, head = map(stack.enter_context, self.start())
            for case in cases:
                try:
                    for side in (base, head):
                        if skipped := side.ask("prepare", LIMIT_SECONDS, key=case.key):
                            raise Refused(skipped)
                    yield _in_turn(base, head, case.key)
                except Refused as error:
                    yield Found(case.key, failed=str(error))
                except Lost as error:
                    yield Found(case.key, failed=str(error))
                    base, head = map(stack.enter_context, self.start())


@dataclass(frozen=True)
class Tracked:
    """A number of each commit, by fresh processes; `start` makes both."""

    start: Callable[[], tuple[Worker, Worker]]

    def process(self, cases: Sequence[Case]) -> Iterator[Found]:
        """Both numbers of each case."""
        with ExitStack() as stack:
            sides = [stack.enter_context(each) for each in self.start()] if cases else []
            for case in cases:
                try:
                    yield _tracked(case.key, [side.ask("track", LIMIT_SECONDS, key=case.key) for side in sides])
                except Refused as error:
                    yield Found(case.key, failed=str(error))
                except Lost as error:
                    yield Found(case.key, failed=str(error))
                    sides = [stack.enter_context(each) for each in self.start()]


def _tracked(key: str, numbers: Sequence[dict[str, Any]]) -> Found:
    if any("skipped" in number for number in numbers):
        return Found(key, about={"skipped": [number.get("skipped", "") for number in numbers]})
    base, head = (number["value"] for number in numbers)
    log_ratio = math.log(head / base) if base > 0 and head > 0 else math.copysign(math.inf, head - base)
    return Found(key, 0.0 if base == head else log_ratio, base, head, about={"unit": numbers[0]["unit"]})


def _in_turn(base: Worker, head: Worker, key: str) -> Found:
    """Rounds A B B A and B A A B alternately, as of kernels."""
    logs: list[float] = []
    taken: dict[str, list[float]] = {"base": [], "head": [], "base_cpu": [], "head_cpu": []}
    spent = 0.0
    # Of an odd number of rounds the median would have the order of the first.
    while len(logs) % 2 or spent < CALL_SECONDS:
        flip = len(logs) % 2 == 1
        order = (head, base, base, head) if flip else (base, head, head, base)
        turns = [side.ask("time", LIMIT_SECONDS, key=key, seconds=TURN_SECONDS) for side in order]
        before, after = both_times([turn["wall"] for turn in turns], flip)
        logs.append(math.log(after / before))
        taken["base"].append(before)
        taken["head"].append(after)
        for side, turn in zip(order, turns, strict=True):
            if turn["cpu"] is not None:
                taken["base_cpu" if side is base else "head_cpu"].append(turn["cpu"])
        spent += sum(turn["wall"] * turn["calls"] for turn in turns)
    base_seconds, head_seconds, *cpu = (median(each) for each in taken.values() if each)
    return Found(key, median(logs), base_seconds, head_seconds, about={"rounds": len(logs), "cpu_seconds": cpu})
