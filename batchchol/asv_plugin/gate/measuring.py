"""Measuring cases until each is decided, or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from batchchol.asv_plugin.gate.cases import Case
from batchchol.asv_plugin.gate.decide import Decision, Evidence, confirmed, decide, promising
from batchchol.asv_plugin.gate.estimate import LEAST
from batchchol.asv_plugin.gate.experiment import Calls, Experiment, Found, Kernels, Tracked
from batchchol.asv_plugin.gate.journal import Journal
from batchchol.asv_plugin.gate.outcome import Verdict
from batchchol.asv_plugin.gate.worker import Worker

# Processes of each case before anything is decided, and of each further turn.
FIRST = {"kernel": 8, "call": 8}
FURTHER = 4
# Fresh ones that find a discovery again.
FRESH = {"kernel": 12, "call": 24}
CHANGED = (Verdict.SLOWER, Verdict.FASTER)
Say = Callable[[str], None]


@dataclass
class Gathered:
    """What was found of a case so far, and by the fresh processes that found a change again; then that is decided."""

    case: Case
    threshold: float
    found: list[Found] = field(default_factory=list)
    fresh: list[Found] = field(default_factory=list)
    seconds: float = 0.0
    discovered: Decision | None = None

    @property
    def failed(self) -> str:
        return next((each.failed for each in (*self.found, *self.fresh) if each.failed), "")

    def so_far(self) -> Evidence:
        return Evidence(self.case.key, tuple(each.log_ratio for each in self.found), self.threshold)


class Measuring:
    """Measures until everything is decided or the time is up."""

    def __init__(self, backend: str, journal: Journal, end: float, say: Say) -> None:
        self._backend, self._journal, self._end, self._say = backend, journal, end, say

    def decide(
        self, every: Sequence[Gathered], pair: Callable[[], Worker], both: Callable[[], tuple[Worker, Worker]]
    ) -> dict[str, Decision]:
        """The decision of each case, by its key; none of what is tracked, or failed."""
        experiments: dict[str, Experiment] = {
            "kernel": Kernels(pair, self._backend),
            "call": Calls(both),
        }
        self._measure(Tracked(both), [each for each in every if each.case.kind == "track"], 1)
        timed = [each for each in every if each.case.kind != "track"]
        for kind, experiment in experiments.items():
            self._measure(experiment, [each for each in timed if each.case.kind == kind], FIRST[kind])
        while True:
            self._confirm(experiments, timed)
            decisions = self._decisions(timed)
            again = self._again(decisions, timed)
            if self._left() <= 0 or not again:
                return {each.key: each for each in decisions}
            for kind, experiment in experiments.items():
                self._measure(experiment, [each for each in again if each.case.kind == kind], FURTHER)

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _measure(
        self, experiment: Experiment, every: Sequence[Gathered], processes: int, *, fresh: bool = False
    ) -> None:
        """Measure each case in `processes` more processes while time allows; what the journal has is used first."""
        for done in range(1, processes + 1):
            due = [each for each in every if not each.failed]
            known = {each.case.key: self._journal.next(each.case.key, fresh=fresh) for each in due}
            wanted = {each.case.key: each for each in due if known[each.case.key] is None}
            for each in due:
                if known[each.case.key] is not None:
                    _add(each, known[each.case.key], fresh)
            if not wanted or self._left() <= 0:
                continue
            begin = time.monotonic()
            for found in experiment.process([each.case for each in wanted.values()]):
                now = time.monotonic()
                wanted[found.key].seconds, begin = now - begin, now
                self._journal.note(found, fresh=fresh)
                _add(wanted[found.key], found, fresh)
                if self._left() <= 0:
                    break
            kinds = " and ".join(dict.fromkeys(f"{each.case.kind}s" for each in every))
            again = ", to find a change again" * fresh
            self._say(f"process {done} of {processes}, {len(wanted)} {kinds}{again}: {self._left():.0f} s left")

    def _decisions(self, every: Sequence[Gathered]) -> list[Decision]:
        """What was found of each case so far; a discovery counts once fresh processes found it again."""
        usable = [each for each in every if each.found and not each.failed]
        made = decide([each.so_far() for each in usable])
        return [_settled(evidence, decision) for evidence, decision in zip(usable, made, strict=True)]

    def _again(self, decisions: Sequence[Decision], every: Sequence[Gathered]) -> list[Gathered]:
        """What is worth another turn: of the undecided cases those that are the soonest decided."""
        chosen = promising(decisions, {each.case.key: max(each.seconds, 1e-3) for each in every}, self._left())
        return [each for each in every if each.case.key in chosen]

    def _confirm(self, experiments: Mapping[str, Experiment], every: Sequence[Gathered]) -> None:
        """Find discoveries again by fresh processes; what these do not find counts with the rest."""
        usable = [each for each in every if each.found and not each.failed]
        made = zip(usable, decide([each.so_far() for each in usable]), strict=True)
        new = ((each, found) for each, found in made if each.discovered is None and found.verdict in CHANGED)
        due = {each.case.key: (each, found) for each, found in new}
        for kind, experiment in experiments.items():
            of_kind = [each for each, _ in due.values() if each.case.kind == kind]
            self._measure(experiment, of_kind, FRESH[kind], fresh=True)
        for each, found in due.values():
            if each.failed or len(each.fresh) < LEAST:
                continue
            again = Evidence(each.case.key, tuple(one.log_ratio for one in each.fresh), each.threshold)
            if confirmed(found, again):
                each.discovered = found
            else:
                each.found += each.fresh
                each.fresh = []


def _settled(evidence: Gathered, decision: Decision) -> Decision:
    """A discovery counts once fresh processes found it again."""
    if evidence.discovered is not None:
        return evidence.discovered
    if decision.verdict in CHANGED:
        return replace(decision, verdict=Verdict.UNDECIDED)
    return decision


def _add(evidence: Gathered, found: Found | None, fresh: bool) -> None:
    if found is not None:
        (evidence.fresh if fresh else evidence.found).append(found)
