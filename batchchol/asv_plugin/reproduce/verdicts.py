"""From rounds to verdicts, by the statistics of the gate: which claims hold here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from batchchol.asv_plugin.gate.decide import Decision, Evidence, confirmed, decide, threshold
from batchchol.asv_plugin.gate.estimate import LEAST
from batchchol.asv_plugin.gate.outcome import Verdict
from batchchol.asv_plugin.reproduce.cases import compared, is_relative, side_of
from batchchol.asv_plugin.reproduce.kept import Here
from batchchol.compare.peers import PEERS
from batchchol.compare.rows import Row
from batchchol.errors import BatchcholError
from batchchol.report.claims.listed import Claim
from batchchol.report.claims.quantities import Value, quantity, written


class Holds(Enum):
    """What is said of a claim."""

    YES = "holds"
    NO = "does not hold"
    UNDECIDED = "undecided"
    """The budget ended before it could be said."""
    SHOWN = "shown"
    """It says how something was measured, or is no ratio and of another kind of machine: nothing to judge."""
    ABSENT = "not measured"
    """It cannot be measured here."""
    FAILED = "failed"
    """Its measurement failed, as by a wrong result."""


@dataclass(frozen=True)
class Judged:
    """A claim and what became of it here.

    `here` is the median of the rounds; `ratio` is that over what was published, with its 99% interval, or None. With
    `shape` it was judged by which side is faster, since the published numbers are of another kind of machine.
    """

    claim: Claim
    holds: Holds
    here: Value | None = None
    ratio: float | None = None
    low: float = 0.0
    high: float = math.inf
    rounds: int = 0
    shape: bool = False
    why: str = ""

    @property
    def here_text(self) -> str:
        """Its value here in words."""
        return "" if self.here is None else written(self.here, quantity(self.claim.quantity).style)


def same_kind(claim: Claim, here: Here) -> bool:
    """Whether the claim was published of a machine like this one: the same GPU; without one, CPU, cores and SIMD."""
    return all((row.gpu == here.gpu) if row.on_gpu else (row.machine == here.machine) for row in compared(claim))


def judgeable(claim: Claim, here: Here) -> bool:
    """Whether it can fail on this machine."""
    return bool(quantity(claim.quantity).better) and (same_kind(claim, here) or is_relative(claim))


@dataclass(frozen=True)
class Measured:
    """A claim, and its rows of some rounds."""

    claim: Claim
    rounds: Sequence[Sequence[Row]]


def judge(measured: Sequence[Measured], here: Here) -> list[Judged]:
    """What is said of each claim, in the order given.

    All that can be judged are decided together, as the cases of the gate. One that seems not to hold must be found so
    again by `LEAST` fresh rounds.
    """
    values, said = dict[str, list[Value]](), dict[str, Judged]()
    claims = {each.claim.name: each.claim for each in measured}
    for each in measured:
        try:
            values[each.claim.name] = [each.claim.of(rows) for rows in each.rounds]
        except BatchcholError as error:
            # As where none of its kernels could take part.
            said[each.claim.name] = Judged(each.claim, Holds.ABSENT, why=str(error))
    tried = {name: _evidence(claims[name], of, here) for name, of in values.items() if judgeable(claims[name], here)}
    decisions = decide([_first(each) for each in tried.values()])
    for (name, evidence), decision in zip(tried.items(), decisions, strict=True):
        said[name] = _judged(claims[name], decision, evidence, values[name], here)
    return [said.get(name) or _shown(claim, values[name]) for name, claim in claims.items()]


def undecided(judged: Iterable[Judged]) -> list[Judged]:
    """The claims that more rounds may decide."""
    return [each for each in judged if each.holds is Holds.UNDECIDED]


def _evidence(claim: Claim, values: Sequence[Value], here: Here) -> Evidence:
    """How much worse each round is than what was published; with another kind of machine, than the other side.

    A peer's own number is compared both ways, see `_judged`.
    """
    sign = -1.0 if quantity(claim.quantity).better == "more" else 1.0
    if not same_kind(claim, here):
        return Evidence(claim.name, tuple(sign * math.log(float(each)) for each in values), threshold("call", None))
    published = float(claim.of(claim.group.rows))
    logs = tuple(sign * math.log(float(each) / published) for each in values)
    return Evidence(claim.name, logs, threshold("call", _noise(claim)))


def _noise(claim: Claim) -> float:
    """The standard error of what was published: of a median, 1.253 σ / √samples, with σ = the range / 1.349."""
    if claim.quantity in ("ratio", "worst"):
        return 0.0
    errors = []
    for side in side_of(claim).cases():
        rows = [side.best, side.best_peer] if is_relative(claim) else [side.best]
        errors.append(math.hypot(*(1.253 * row.spread / 1.349 / row.samples**0.5 for row in rows)))
    return max(errors)


def _first(evidence: Evidence) -> Evidence:
    """Without the fresh rounds that have to confirm it."""
    logs = evidence.log_ratios
    return replace(evidence, log_ratios=logs[:-LEAST]) if len(logs) >= 2 * LEAST else evidence


def _judged(claim: Claim, decision: Decision, evidence: Evidence, values: Sequence[Value], here: Here) -> Judged:
    shape = not same_kind(claim, here)
    worse = {Verdict.SLOWER} | ({Verdict.FASTER} if _of_peer(claim) else set())
    bad = worse if not shape else _lost(claim)
    fresh = replace(evidence, log_ratios=evidence.log_ratios[-LEAST:])
    many = len(evidence.log_ratios) >= 2 * LEAST
    if decision.verdict is Verdict.UNDECIDED:
        holds = Holds.UNDECIDED
    elif decision.verdict in bad:
        again = decision.verdict is Verdict.SAME or confirmed(decision, fresh)
        holds = Holds.NO if many and again else Holds.UNDECIDED
    else:
        holds = Holds.YES
    return _said(claim, values, holds, decision, shape)


def _lost(claim: Claim) -> set[Verdict]:
    """What a ratio to peers must not be here: the other side faster, or as fast, than where it was published."""
    published, least = float(claim.of(claim.group.rows)), 1 + threshold("call", None)
    if published > least:
        return {Verdict.SLOWER, Verdict.SAME}
    return {Verdict.SLOWER} if published >= 1 / least else set()


def _of_peer(claim: Claim) -> bool:
    """Whether it is a number of a peer alone, which must be neither lower nor higher."""
    kind, _, contender = claim.quantity.partition(":")
    return kind == "gflops" and any(contender in peers for peers in PEERS.values())


def _said(claim: Claim, values: Sequence[Value], holds: Holds, decision: Decision, shape: bool) -> Judged:
    """With the ratio to what was published, whichever the evidence is of."""
    if not values:
        return Judged(claim, holds, shape=shape, why="the budget ended before it was measured")
    scale = float(claim.of(claim.group.rows)) if shape else 1.0
    bounds = [decision.low, decision.ratio, decision.high]
    if quantity(claim.quantity).better == "more":
        bounds = [1 / bound if bound else math.inf for bound in reversed(bounds)]
    low, ratio, high = (bound / scale for bound in bounds)
    here = sorted(float(each) for each in values)[len(values) // 2]
    why = f"{len(values)} of {LEAST} rounds" if len(values) < LEAST else ""
    return Judged(claim, holds, here, ratio, low, high, len(values), shape, why)


def _shown(claim: Claim, values: Sequence[Value]) -> Judged:
    if not values:
        return Judged(claim, Holds.SHOWN)
    numbers = sorted(each for each in values if not isinstance(each, str))
    here = numbers[len(numbers) // 2] if numbers else max(values, key=values.count)
    published = claim.of(claim.group.rows)
    ratio = None if isinstance(here, str) or isinstance(published, str) or not published else here / published
    return Judged(claim, Holds.SHOWN, here, ratio, rounds=len(values))


def status(judged: Iterable[Judged]) -> int:
    """The exit status, as the gate's: 2 a measurement failed, else 1 a claim does not hold, 3 undecided, 0 all hold.

    Nothing judged at all is undecided.
    """
    found = {each.holds for each in judged}
    if Holds.FAILED in found:
        return 2
    if Holds.NO in found:
        return 1
    return 0 if Holds.YES in found and Holds.UNDECIDED not in found else 3
