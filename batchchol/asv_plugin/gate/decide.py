"""From ratios to verdicts: which cases are slower, faster or the same, and which to measure again.

All sums are on logarithms of ratios, where a slowdown and the speedup that undoes it are equally far from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from batchchol.asv_plugin.gate.estimate import LEAST, Estimate, estimate, t_quantile
from batchchol.asv_plugin.gate.outcome import Verdict

FLOORS = {"kernel": 0.01, "call": 0.03, "track": 0.03}
"""The smallest ratio, less 1, that counts as a change of each kind.

Kernels: equal ones in one process differ by up to 0.7%. Calls and tracked numbers come from two processes, where the
placement of code and data alone moves times by some percent (Mytkowicz et al., ASPLOS 2009).
"""

MOST = 64
"""Processes of a case: more time is not worth the answer."""

FALSE_DISCOVERIES = 0.05
"""Share of first discoveries that may be chance: one in twenty, as each must then be found again."""
AGAIN = 0.05
"""The level at which fresh processes find it again: what passes both is chance once in 400 times."""
OUTSIDE = 0.01
"""What a confidence interval leaves out, both sides together."""

_NOISE_DEVIATIONS = 2.0


@dataclass(frozen=True)
class Evidence:
    """What was measured of a case.

    Attributes
    ----------
    key : str
    log_ratios : tuple of float
        Logarithm of the head's time over the base's, one of each process; finite.
    threshold : float
        The ratio, less 1, that counts as a change.
    """

    key: str
    log_ratios: tuple[float, ...]
    threshold: float

    @cached_property
    def estimate(self) -> Estimate:
        """See :func:`~batchchol.asv_plugin.gate.estimate.estimate`."""
        return estimate(self.log_ratios)

    @property
    def slower(self) -> float:
        """The p-value of "slower by more than the threshold"."""
        return self.estimate.chance_above(float(np.log1p(self.threshold)))

    @property
    def faster(self) -> float:
        """The p-value of "faster by more than the threshold"."""
        return 1 - self.estimate.chance_above(-float(np.log1p(self.threshold)))

    @property
    def is_same(self) -> bool:
        """Whether the whole interval lies within twice the threshold: a smaller change is not one."""
        reach = abs(self.estimate.location) + self.estimate.half_width(OUTSIDE)
        return reach <= float(np.log1p(2 * self.threshold))


@dataclass(frozen=True)
class Decision:
    """A verdict and what it rests on; `low` to `high`, 0 to infinity if nothing is known, is the 99% interval."""

    evidence: Evidence
    verdict: Verdict
    ratio: float
    low: float
    high: float

    @property
    def key(self) -> str:
        """The case."""
        return self.evidence.key


def threshold(kind: str, noise: float | None) -> float:
    """The ratio, less 1, that counts as a change: the floor of the kind, or twice the case's own noise if more.

    `noise` is the standard deviation of its logarithmic ratios when nothing changed; None if it is not known.
    """
    return max(FLOORS[kind], float(np.expm1(_NOISE_DEVIATIONS * (noise or 0.0))))


def decide(evidence: Sequence[Evidence], false_discoveries: float = FALSE_DISCOVERIES) -> list[Decision]:
    """The verdict of each case, in the order given.

    SLOWER, then FASTER: discovered among all cases by Benjamini and Hochberg (1995), each direction for itself. Their
    share of chance holds under the positive dependence of cases that share processes. Then SAME, else UNDECIDED.
    """
    slower = _discovered([each.slower for each in evidence], false_discoveries)
    faster = _discovered([each.faster for each in evidence], false_discoveries)
    return [_decision(*each) for each in zip(evidence, slower, faster, strict=True)]


def _discovered(chances: Sequence[float], false_discoveries: float) -> list[bool]:
    from scipy import stats

    if not chances:
        return []
    return [bool(each <= false_discoveries) for each in stats.false_discovery_control(chances)]


def _decision(evidence: Evidence, slower: bool, faster: bool) -> Decision:
    location, half = evidence.estimate.location, evidence.estimate.half_width(OUTSIDE)
    if slower or faster:
        verdict = Verdict.SLOWER if slower else Verdict.FASTER
    else:
        verdict = Verdict.SAME if evidence.is_same else Verdict.UNDECIDED
    ratio, low, high = (float(each) for each in np.exp([location, location - half, location + half]))
    return Decision(evidence, verdict, ratio, low, high)


def confirmed(decision: Decision, fresh: Evidence, level: float = AGAIN) -> bool:
    """Whether fresh processes alone find a discovery again; the first ones were chosen for being extreme."""
    if decision.verdict is Verdict.SLOWER:
        return fresh.slower <= level
    return decision.verdict is Verdict.FASTER and fresh.faster <= level


def promising(
    decisions: Sequence[Decision],
    seconds: Mapping[str, float],
    budget: float,
    false_discoveries: float = FALSE_DISCOVERIES,
) -> list[str]:
    """Undecided cases to measure again, the soonest decided first, as many as the budget holds.

    `seconds` has the time of one process of each case, `budget` the time for all, both in seconds.
    """
    level = false_discoveries / max(len(decisions), 1)
    undecided = [each for each in decisions if each.verdict is Verdict.UNDECIDED]
    costs = {each.key: further(each.evidence, level) * seconds[each.key] for each in undecided}
    chosen = []
    for key in sorted(costs, key=costs.__getitem__):
        if 0 < costs[key] <= budget:
            chosen.append(key)
            budget -= costs[key]
    return chosen


def further(evidence: Evidence, level: float) -> int:
    """How many more processes will decide a case if its location and spread stay, up to `MOST` in all.

    `level` is that of a lone slower case: the false discoveries that are allowed, over the number of cases.
    """
    now, location = len(evidence.log_ratios), abs(evidence.estimate.location)
    if now < LEAST:
        return LEAST - now
    counts = np.arange(now + 1, MOST + 1)
    errors = evidence.estimate.error * np.sqrt(now / counts)
    same = location + t_quantile(OUTSIDE / 2, counts - 1) * errors <= np.log1p(2 * evidence.threshold)
    changed = location - t_quantile(level, counts - 1) * errors >= np.log1p(evidence.threshold)
    decided = counts[same | changed]
    return max(int(decided[0]) if len(decided) else MOST, now) - now


def resolution(
    decisions: Sequence[Decision], cases: int, power: float = 0.8, false_discoveries: float = FALSE_DISCOVERIES
) -> float | None:
    """The smallest slowdown, as a ratio less 1, that half of these cases would have shown with this power.

    `cases` is how many were decided together, of every kind: a lone slower one must be significant among them all.
    """
    if not decisions:
        return None
    level = false_discoveries / cases
    freedom = np.array([each.evidence.estimate.freedom for each in decisions])
    errors = np.array([each.evidence.estimate.error for each in decisions])
    borders = np.log1p([each.evidence.threshold for each in decisions])
    found = np.median(borders + (t_quantile(level, freedom) + t_quantile(1 - power, freedom)) * errors)
    return float(np.expm1(found)) if np.isfinite(found) else None
