"""Where a case became slower or faster for good: change points of its history, by penalised least squares.

Logarithms of medians are modelled as constant between change points, with Gaussian noise of one size. PELT (Killick,
Fearnhead and Eckley, JASA 2012; package ruptures) finds the segmentation of least squares plus a penalty for each
change. A change point lies between two measured commits: commits between them that were not measured share the blame.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchchol.errors import optional

SMALLEST = 0.02
"""Smaller changes are not reported: clocks and addresses of memory differ by as much between processes."""

# The least noise that is believed (half a percent), and where nothing tells of it.
_FLOOR, _UNSURE = 0.005, 0.01
_ENOUGH = 6
# What all of a machine's controls say of a case weighs as much as this many controls of its own.
_PRIOR = 3
# Two parameters a change, its place and its size, by Schwarz's criterion, and one more for outliers. Of a short
# history as of one of this length: equal code is then called changed once in 30 histories of 30 commits.
_PENALTY, _LONG = 3.0, 20
_NORMAL = 1.4826


@dataclass(frozen=True)
class ChangePoint:
    """A change between the medians `index` - 1 and `index` of a history; `ratio` is after over before."""

    index: int
    ratio: float


@dataclass(frozen=True)
class Controls:
    """What equal code differed by: logarithmic ratios of one commit's median and the next, of the same kernel text.

    `own` are those of a case, `pooled` those of all cases of its machine.
    """

    own: tuple[float, ...] = ()
    pooled: tuple[float, ...] = ()

    @property
    def deviation(self) -> float | None:
        """The standard deviation of a median: the case's own, drawn towards the machine's; None without controls."""
        if not self.pooled:
            return None
        usual = _NORMAL * float(np.median(np.abs(self.pooled))) / math.sqrt(2)
        squares = sum(each**2 for each in self.own) / 2
        return math.sqrt((squares + _PRIOR * usual**2) / (len(self.own) + _PRIOR))


def noise(medians: Sequence[float], errors: Sequence[float] = (), controls: Controls | None = None) -> float:
    """The standard deviation of logarithms of medians that equal code would have.

    By controls, else by differences of neighbours, of which few are changes; no less than the medians' own standard
    `errors`: two processes differ by more than the samples of one.
    """
    own = max(_FLOOR, float(np.median(errors)) if len(errors) else 0.0)
    if controls and (between := controls.deviation) is not None:
        return max(own, between)
    if len(medians) < _ENOUGH:
        return max(own, _UNSURE)
    apart = np.abs(np.diff(np.log(np.asarray(medians, dtype=np.float64))))
    return max(own, _NORMAL * float(np.median(apart)) / math.sqrt(2))


def change_points(medians: Sequence[float], deviation: float) -> list[ChangePoint]:
    """Where a history of positive medians changes, the oldest first.

    Parameters
    ----------
    medians : sequence of float
        Of the measured commits, in their order.
    deviation : float
        What equal code differs by; see :func:`noise`.

    Raises
    ------
    BatchcholError
        If ruptures is missing.
    """
    ruptures = optional("ruptures", "finding change points", "history")
    if len(medians) < 2:
        return []
    logs = np.log(np.asarray(medians, dtype=np.float64))
    scaled = (logs / deviation).reshape(-1, 1)
    search = ruptures.Pelt(model="l2", min_size=1, jump=1).fit(scaled)
    ends = search.predict(pen=_PENALTY * math.log(max(len(logs), _LONG)))
    return _reported(logs, [0, *ends])


def _reported(logs: NDArray[np.float64], bounds: Sequence[int]) -> list[ChangePoint]:
    """The changes between neighbouring segments that are large enough."""
    levels = [float(np.mean(logs[first:last])) for first, last in itertools.pairwise(bounds)]
    steps = [after - before for before, after in itertools.pairwise(levels)]
    changes = zip(bounds[1:-1], steps, strict=True)
    return [ChangePoint(index, math.exp(step)) for index, step in changes if abs(step) > math.log1p(SMALLEST)]
