"""Verdicts on statements, and measurements in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchchol.report import pivots

NOISE = 0.02
"""Differences up to this share count as none."""

LITTLE = 0.05
"""Differences up to this share are little."""

MOST, HALF = 0.8, 0.5
"""A statement agrees where it holds at this share of the orders, and differs where it does at less than half."""


def verdict(holds: Any) -> str:
    """What is said of a statement that holds at these of the orders."""
    share = float(np.mean(holds))
    return "agrees" if share >= MOST else "differs" if share < HALF else "partly"


def at(true: Any) -> str:
    """At how many orders something holds, or at which if there is only one."""
    if len(true) == 1:
        return pivots.orders(true.index[true])
    return f"{int(true.sum())} of {len(true)} orders"


def best(won: Any) -> str:
    """Which values are the best, and how often."""
    if len(won) == 1:
        return f"{won.iloc[0]} at {pivots.orders(won.index)}"
    return f"{pivots.counts(won)} of {len(won)} orders"


def spread(gain: Any) -> str:
    """Smallest, median and largest of gains that are not one an order."""
    ends = f"{signed(gain.min())} to {signed(gain.max())}, median {signed(gain.median())}"
    return f"{ends} ({len(gain)} pairs)" if len(gain) > 1 else signed(gain.iloc[0])


def span(gain: Any) -> str:
    """Smallest, median and largest of some gains."""
    low, high = gain.idxmin(), gain.idxmax()
    if len(gain) == 1:
        return f"{signed(gain[low])} (n = {low})"
    return f"{signed(gain[low])} (n = {low}) to {signed(gain[high])} (n = {high}), median {signed(gain.median())}"


def typical(gain: Any) -> str:
    """Median and largest of some gains."""
    if len(gain) == 1:
        return f"{percent(gain.iloc[0])} (n = {gain.index[0]})"
    return f"{percent(gain.median())} in the median, {percent(gain.max())} at most (n = {gain.idxmax()})"


def rate(gflops: float) -> str:
    """GFLOP/s, with three digits where there would be fewer: a core reaches no more than two before the point."""
    return f"{gflops:,.0f}" if gflops >= 100 else f"{gflops:.3g}"


def percent(gain: float) -> str:
    """A share in percent, a minus sign only where there is one."""
    return signed(gain).removeprefix("+")


def signed(gain: float) -> str:
    """A share in percent, with a true minus sign, and none before zero."""
    return f"{round(gain, 3) + 0.0:+.1%}".replace("-", "−")
