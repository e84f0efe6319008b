"""Where the ratios of a few processes lie, and how well that is known.

The process is the unit of evidence: within one, times agree far better than between two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 4
"""Processes: with fewer nothing is known of the spread."""

_CLIP_DEVIATIONS = 2.0
_SMALLEST_ERROR = 1e-9  # deterministic numbers have no spread, and 0/0 has no meaning


@dataclass(frozen=True)
class Estimate:
    """A location, its standard error, and the error's degrees of freedom by Student's t."""

    location: float
    error: float
    freedom: float

    def half_width(self, outside: float) -> float:
        """Half of the interval about the location that leaves out this share of probability, half on either side."""
        return float(t_quantile(outside / 2, np.array(self.freedom)) * self.error)

    def chance_above(self, border: float) -> float:
        """The p-value of "greater than `border`"."""
        from scipy import special

        return float(special.stdtr(self.freedom, (border - self.location) / self.error))


def estimate(log_ratios: Sequence[float]) -> Estimate:
    """Huber's M-estimate of location with its Studentized error: normal noise loses little, outliers count little.

    Values are clipped at two robust standard deviations (1.4826 times the median absolute deviation) about the
    location until it stays (Huber, Robust Statistics, 1981, chapter 6). A clipped value gives no degree of freedom.

    Chosen by simulation of 4 to 64 processes, one in twenty with five times the spread, at the levels of sixty cases:
    Wilcoxon's test cannot reach those with 8 processes, plain means lose to outliers, and trimming a fifth at either
    end (Yuen, Biometrika 1974) leaves too few degrees of freedom below 24 processes.
    """
    values = np.asarray(log_ratios, dtype=float)
    if len(values) < LEAST:
        return Estimate(float(np.median(values)) if len(values) else 0.0, np.inf, 1.0)
    location = float(np.median(values))
    # Where more than half are equal there is no scale to clip by.
    reach = _CLIP_DEVIATIONS * 1.4826 * float(np.median(np.abs(values - location))) or np.inf
    for _ in range(20):
        clipped = np.minimum(np.maximum(values, location - reach), location + reach)
        location = float(clipped.mean())
    inside = max(float(np.mean(np.abs(values - location) <= reach)), 0.5)
    error = float(clipped.std(ddof=1)) / len(values) ** 0.5 / inside
    return Estimate(location, max(error, _SMALLEST_ERROR), inside * len(values) - 1)


def both_times(times: Sequence[float], flip: bool) -> tuple[float, float]:
    """The mean times of base and head in a round of four turns: base, head, head, base, or if `flip` the opposite."""
    first, second, third, fourth = times
    inner, outer = (second + third) / 2, (first + fourth) / 2
    return (inner, outer) if flip else (outer, inner)


def t_quantile(above: float, freedom: NDArray[Any]) -> NDArray[np.float64]:
    """What a t-distributed number exceeds with the probability `above`, for each number of degrees of freedom."""
    from scipy import special

    return np.asarray(-special.stdtrit(freedom, above), dtype=np.float64)
