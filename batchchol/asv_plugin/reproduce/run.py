"""Measures claims again, as many as a budget holds, and judges them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from batchchol.asv_plugin.gate.decide import MOST
from batchchol.asv_plugin.gate.estimate import LEAST
from batchchol.asv_plugin.reproduce.cases import Asked, Case, cases_of, compared, missing, needed
from batchchol.asv_plugin.reproduce.kept import Kept, Round
from batchchol.asv_plugin.reproduce.verdicts import Holds, Judged, Measured, judge, undecided
from batchchol.backends import Backend
from batchchol.compare import comparison
from batchchol.compare.peers import PEERS, find
from batchchol.compare.rows import Row
from batchchol.errors import BatchcholError, DeviceLost
from batchchol.progress import minutes
from batchchol.report.claims.listed import Claim

SAMPLES = 5
"""Timed calls of each contender in a round: in `LEAST` rounds as many as most published medians have."""

Measure = Callable[[Case, Asked], Sequence[Row]]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Machine:
    """What can be used here: backends by name, why the others cannot, and what was measured before."""

    backends: Mapping[str, Backend]
    unusable: Mapping[str, str]
    kept: Kept


@dataclass
class Work:
    """Claims that can be measured here, what they need, and which cases have failed, with the reason."""

    claims: Sequence[Claim]
    needs: Mapping[Case, Asked]
    kept: Kept
    failed: dict[Case, str] = field(default_factory=dict)

    def rounds(self, case: Case) -> list[Round]:
        """What was measured of a case."""
        return self.kept.rounds(case, self.needs[case])

    def rows(self, claim: Claim) -> list[list[Row]]:
        """Its rows of each round that all of its cases have had."""
        rounds = zip(*(self.rounds(case) for case in cases_of(claim)), strict=False)
        return [[row for each in together for row in each.rows] for together in rounds]

    def judged(self) -> list[Judged]:
        """What is said of each claim by now."""
        judged = judge([Measured(claim, self.rows(claim)) for claim in self.claims], self.kept.here)
        return [self._failed(each.claim) or each for each in judged]

    def _failed(self, claim: Claim) -> Judged | None:
        why = next((self.failed[case] for case in cases_of(claim) if case in self.failed), "")
        return Judged(claim, Holds.FAILED, why=why) if why else None


def run(
    claims: Iterable[Claim], machine: Machine, budget: float, report: Report, measure: Measure | None = None
) -> list[Judged]:
    """Measure claims and judge them, in the order given.

    Parameters
    ----------
    claims : iterable of Claim
    machine : Machine
        Its `kept` is read and added to.
    budget : float
        Seconds: no round begins after them, nor one that took longer before than what is left.
    report : callable
        Called with a line at every step.
    measure : callable, optional
        The rows of a case; by default a comparison's.

    Raises
    ------
    DeviceLost
        If the GPU cannot be used any more.
    """
    wanted = list(claims)
    refused = {claim.name: why for claim in wanted if (why := refusal(claim, machine))}
    able = [claim for claim in wanted if claim.name not in refused]
    work = Work(able, needed(able), machine.kept)
    _measure(work, measure or comparing(machine.backends), time.monotonic() + budget, report)
    judged = {each.claim.name: each for each in work.judged()}
    return [judged.get(claim.name) or Judged(claim, Holds.ABSENT, why=refused[claim.name]) for claim in wanted]


def refusal(claim: Claim, machine: Machine) -> str:
    """Why a claim cannot be measured here; "" if it can."""
    if not compared(claim):
        return f"{claim.group.file} is of another command than `compare`: datasets/README.md says of which"
    absent = dict[str, str]()
    for case in cases_of(claim):
        backend = machine.backends.get(case.backend)
        if backend is None:
            return f"{case.backend}: {machine.unusable[case.backend]}"
        if case.threads > backend.threads:
            return f"it needs {case.threads} threads, and there are {backend.threads}"
        absent |= _absent(case)
    return missing(claim, absent)


def comparing(backends: Mapping[str, Backend]) -> Measure:
    """Measures by `compare`, one case at a time."""

    def measure(case: Case, asked: Asked) -> Sequence[Row]:
        known, absent = PEERS[case.backend], _absent(case)
        return comparison.compare(
            backends[case.backend],
            find(case.backend, [name for name in known if name in asked.contenders and name not in absent]),
            op=case.op,
            nrhs=case.nrhs,
            ns=[case.n],
            sizes=[str(case.batch)],
            threads=[case.threads],
            samples=SAMPLES,
            dtype=case.dtype,
            maths=asked.maths or None,
            protocols=[case.protocol],
            contenders=asked.contenders - known.keys(),
            report=lambda line: None,
        ).rows

    return measure


def _absent(case: Case) -> dict[str, str]:
    """The peers that are not installed, and what to do about it."""
    surveys = {name: peer.survey(case.op) for name, peer in PEERS[case.backend].items()}
    return {
        name: ": ".join(filter(None, (each.detail, each.hint))) for name, each in surveys.items() if not each.found
    }


def _measure(work: Work, measure: Measure, end: float, report: Report) -> None:
    """First `LEAST` rounds of each case, then more of those whose claims are undecided, in turn."""
    for number, case in enumerate(work.needs, start=1):
        which = f"{number} of {len(work.needs)}"
        while len(work.rounds(case)) < LEAST and _round(work, case, measure, end, report, which):
            pass
    while open_cases := _open(work):
        measured = [_round(work, case, measure, end, report, "undecided") for case in open_cases]
        if not any(measured):
            break


def _open(work: Work) -> list[Case]:
    """The cases of undecided claims, those with the fewest rounds first, up to `MOST` rounds."""
    cases = dict.fromkeys(case for each in undecided(work.judged()) for case in cases_of(each.claim))
    able = [case for case in cases if case not in work.failed and len(work.rounds(case)) < MOST]
    return sorted(able, key=lambda case: len(work.rounds(case)))


def _round(work: Work, case: Case, measure: Measure, end: float, report: Report, which: str) -> bool:
    """Measure a case once more, if there is time; whether it was."""
    before = work.rounds(case)
    left = end - time.monotonic()
    if case in work.failed or left <= 0 or (before and before[-1].seconds > left):
        return False
    report(f"{which}: {case}: round {len(before) + 1}, {minutes(left)} left")
    begin = time.monotonic()
    try:
        rows = measure(case, work.needs[case])
    except DeviceLost:
        raise
    except (BatchcholError, ValueError) as error:
        work.failed[case] = str(error)
        report(f"{case}: {error}")
        return False
    work.kept.add(case, Round(work.needs[case], time.monotonic() - begin, rows))
    return True
