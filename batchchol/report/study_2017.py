"""What the 2017 study concluded, in this project's words, against what a data set shows.

Of the study (Gates, Kurzak, Luszczek, Pei, Dongarra, IPDPSW 2017, doi:10.1109/IPDPSW.2017.18) only the abstract was
at hand: the statement about peers follows it. All others about the study are from memory, and marked so: whoever has
its text should check them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchchol.report import pivots
from batchchol.report.importance import Forest
from batchchol.report.speedups import Speedups
from batchchol.tune.search import features

NOISE = 0.02
"""Differences up to this share count as none."""

MOST, HALF = 0.8, 0.5
"""A statement agrees where it holds at this share of the orders, and differs where it does at less than half."""

_SMALL, _LARGE = 16, 32
_LARGE_TILE, _STRAIGHT = 6, 20
_LITTLE = 0.05
BLOCK_THREADS = 1024
"""The later course study's: a block has at most so many threads, one for each element of a tile of each matrix."""


@dataclass(frozen=True)
class Finding:
    """A statement of a study, and what is to be said about it here.

    Attributes
    ----------
    topic, study : str
        What it is about; the statement.
    verdict : {"agrees", "partly", "differs", "not measured", "shown"}
        "shown" where the study has no statement that could hold or not.
    here : str
        The numbers.
    short : str
        Them in a few words, for a figure; empty where nothing was measured.
    source : {"abstract", "memory", "plan"}
        Where the statement is from: the study's abstract, memory, or this project's plan, which quotes it.
    """

    topic: str
    study: str
    verdict: str
    here: str
    short: str = ""
    source: str = "memory"

    @property
    def label(self) -> str:
        """The figure or table that its topic names, such as "Figure 15"; else empty."""
        named = re.search(r"\((figure|table) (\w+)\)", self.topic)
        return f"{named[1].capitalize()} {named[2]}" if named else ""


def findings(
    rows: Any, math: str, forest: Forest | str, speedups: Speedups | None, similar: Any | None = None
) -> list[Finding]:
    """Every statement, held against the points of a case; all but those about math use one accuracy class.

    `similar` has the points of other families as well, for what is said about one of them.
    """
    one = rows[rows["math"] == math]
    others = one if similar is None else similar[similar["math"] == math]
    statements: list[Callable[[], Finding]] = [
        lambda: _peers(speedups),
        lambda: _math(rows),
        lambda: _tiles(one),
        lambda: _looking(one),
        lambda: _chunking(one),
        lambda: _chunk(one),
        lambda: _unrolling(one),
        lambda: _cache(one),
        lambda: _importance(forest),
        lambda: block_rule(others),
    ]
    return [statement() for statement in statements]


def _peers(speedups: Speedups | None) -> Finding:
    topic = "Peers (figure 14)"
    study = "For very small matrices its kernels are faster than traditional ones, which work on ordinary arrays."
    if speedups is None:
        why = "no comparison was given (`--compare FILE` of `python -m batchchol compare`)"
        return _absent(topic, study, why, "abstract")
    table = speedups.table
    least = table.min(axis=1)
    small = least[least.index <= _SMALL]
    ends = [f"{least[n]:.1f} at n = {n}" for n in (least.index[0], least.index[-1])]
    here = f"The fastest peer takes {ends[0]} and {ends[1]} times as long as the library ({speedups.note})."
    slower = least[least < 1 - NOISE]
    here += f" The library is slower at {pivots.orders(slower.index, least.index)}." if len(slower) else ""
    short = f"The library is {least.min():.1f} to {least.max():.1f} times as fast as the fastest peer."
    verdict = _verdict(small if len(small) else least, lambda times: times > 1 + NOISE)
    return Finding(topic, study, verdict, here, short, "abstract")


def _math(rows: Any) -> Finding:
    topic, study = "Math (figure 13)", "Fast math is faster, and gains most where matrices are small."
    gain = gain_of(rows, "math", "fast", "ieee")
    if gain.empty:
        return _absent(topic, study, "only one of the two was measured")
    here = f"Fast math gains {_range(gain)}; more than {NOISE:.0%} at {_of(gain > NOISE)}."
    small, large = gain[gain.index <= _SMALL], gain[gain.index >= _LARGE]
    verdict = _verdict(gain, lambda each: each > NOISE)
    if len(small) and len(large):
        here += (
            f" On average it gains {small.mean():.1%} to n = {_SMALL} and {large.mean():.1%} from n = {_LARGE} on."
        )
        if small.mean() <= large.mean() and verdict == "agrees":
            verdict = "partly"
    short = f"Fast math gains {_typical(gain)}."
    return Finding(topic, study, verdict, here, short)


def _tiles(rows: Any) -> Finding:
    topic = "Tile size (figure 15)"
    study = (
        f"Larger matrices want larger tiles, up to nb = 8: from n = {_LARGE} on the best is not below {_LARGE_TILE}."
    )
    table = pivots.by(rows, "nb")
    won = pivots.winners(table)
    if won.empty:
        return _absent(topic, study, "one nb only")
    here = f"Best: {pivots.where(won, 'nb')}."
    if _LARGE_TILE - 1 in table and table.columns.max() >= _LARGE_TILE:
        small = [nb for nb in table.columns if nb < _LARGE_TILE]
        gain = table.drop(columns=small).max(axis=1) / table[small].max(axis=1) - 1
        gain = gain[gain.index >= _LARGE].dropna()
        if len(gain):
            here += f" From n = {_LARGE} on tiles of {_LARGE_TILE} or more gain, over smaller ones, {_range(gain)}."
            short = f"From n = {_LARGE} on tiles of {_LARGE_TILE} or more gain {_typical(gain)}."
            return Finding(topic, study, _verdict(gain, lambda each: each >= -NOISE), here, short)
    return Finding(topic, study, "not measured", here)


def _looking(rows: Any) -> Finding:
    topic, study = "Looking (figure 16)", "The laziest order of evaluation, top looking, is the best."
    table = pivots.by(rows, "looking")
    won = pivots.winners(table)
    if "top" not in table or won.empty:
        return _absent(topic, study, "there is no choice with top looking in it")
    behind = 1 - pivots.of_best(table)["top"].loc[won.index].dropna()
    here = f"Best: {_won(won)}. Top looking is at most {behind.max():.1%} behind the best"
    here += f" (n = {behind.idxmax()}) and within {NOISE:.0%} of it at {_of(behind <= NOISE)}."
    if "right" in table:
        here += f" Over right looking it gains {_range(pivots.ratio(table, 'top', 'right') - 1)}."
    short = f"Top looking is the best, or within {NOISE:.0%} of it, at {_of(behind <= NOISE)}."
    return Finding(topic, study, _verdict(behind, lambda each: each <= NOISE), here, short)


def _chunking(rows: Any) -> Finding:
    topic, study = "Chunking (figure 17)", "Chunks make the interleaved layout faster."
    gain = pivots.ratio(pivots.by(rows, "layout"), "chunked", "interleaved") - 1
    if gain.empty:
        return _absent(topic, study, "only one of the two layouts was measured")
    helped, hurt = gain[gain > NOISE], gain[gain < -NOISE]
    here = f"Chunks gain {_range(gain)}; more than {NOISE:.0%} at {pivots.orders(helped.index, gain.index)}, "
    here += f"a loss of more than that at {pivots.orders(hurt.index, gain.index)}."
    short = f"Chunks gain {_typical(gain)}."
    return Finding(topic, study, _verdict(gain, lambda each: each > NOISE), here, short)


def _chunk(rows: Any) -> Finding:
    topic, study = "Chunk size (figure 18)", "Small chunks, of 32 or 64 matrices, are the best."
    chunked = rows[rows["chunk"].notna()]
    table = pivots.by(chunked.assign(chunk=chunked["chunk"].astype(int)), "chunk")
    won = pivots.winners(table)
    small = [chunk for chunk in table.columns if chunk in {32, 64}]
    if won.empty or not small or len(small) == len(table.columns):
        return _absent(topic, study, "there is no choice between small and other chunks")
    behind = 1 - pivots.of_best(table)[small].max(axis=1).loc[won.index].dropna()
    here = f"Best: {_won(won)}. The better of 32 and 64 is at most {behind.max():.1%} "
    here += f"behind the best (n = {behind.idxmax()}); the worst size costs up to "
    here += f"{1 - pivots.of_best(table).min(axis=1).min():.0%}."
    often = won.value_counts()
    short = f"Chunks of {often.index[0]} are the best at {_of(won == often.index[0])}."
    return Finding(topic, study, _verdict(behind, lambda each: each <= NOISE), here, short)


def _unrolling(rows: Any) -> Finding:
    topic = "Unrolling (figure 19)"
    study = f"Straight-line code wins for small matrices, to about n = {_STRAIGHT}, and loops over tiles after that."
    gain = gain_of(rows, "unroll", "full", "tiles")
    if gain.empty:
        return _absent(topic, study, "only one of the two was measured")
    won, lost = gain[gain > NOISE], gain[gain < -NOISE]
    here = f"Straight-line code gains more than {NOISE:.0%} at {pivots.orders(won.index, gain.index)}"
    here += f" (at most {won.max():.0%}, n = {won.idxmax()})" if len(won) else ""
    here += f", and loses more than that at {pivots.orders(lost.index, gain.index)}"
    here += f" (at most {-lost.min():.0%}, n = {lost.idxmin()})." if len(lost) else "."
    here += f" It was measured to n = {gain.index.max()}."
    agrees = [(each >= -NOISE) if n <= _STRAIGHT else (each <= NOISE) for n, each in gain.items()]
    short = f"Straight-line code wins at {pivots.orders(won.index, gain.index)}."
    return Finding(topic, study, _verdict(np.array(agrees), lambda each: each), here, short)


def _cache(rows: Any) -> Finding:
    topic, study = "On-chip memory", "Whether L1 or shared memory is favoured matters little."
    gain = gain_of(rows, "cache", "l1", "shared")
    if gain.empty:
        return _absent(topic, study, "there is no choice")
    alike = _of(gain.abs() <= _LITTLE)
    here = f"Favouring L1 gains {_range(gain)}; it makes no more than {_LITTLE:.0%} of a difference at {alike}."
    short = f"Favouring L1 gains {_typical(gain)}."
    return Finding(topic, study, _verdict(gain.abs(), lambda each: each <= _LITTLE), here, short)


def _importance(forest: Forest | str) -> Finding:
    topic, study = "Importance (table I)", "The parameters are ranked by such a forest, with n among them."
    if isinstance(forest, str):
        return _absent(topic, study, forest, "plan")
    ranked = ", ".join(f"{line.parameter.name} ({_signed(line.share)})" for line in forest.importances)
    here = f"By how much of the variance the squared error grows without a parameter's values: {ranked}."
    return Finding(topic, study, "shown", here, source="plan")


def rule_shares(rows: Any) -> Any:
    """Of the shared family: a line a tile size, a column a chunk: its share of the best chunk there, mean over n.

    Of kernels that differ in nothing but their chunk: a block may work on more matrices where chunks are larger, and
    what that does is no merit of the chunk.
    """
    pairs = pivots.paired(_shared(rows).astype({"nb": "Int64", "chunk": "Int64"}), "chunk", features.COLUMNS)
    best_of = pairs.pivot_table(index=["n", "nb"], columns="chunk", values="gflops", aggfunc="max")
    return pivots.of_best(best_of).groupby("nb").mean()


def block_rule(rows: Any) -> Finding:
    """The course study's rule, on points of the shared family."""
    topic = "The later course study"
    study = f"Tiles in shared memory (family shared): chunks of at most {BLOCK_THREADS}/nb² matrices are the best."
    shared = _shared(rows)
    shared = shared.assign(inside=shared["chunk"] * shared["nb"] ** 2 <= BLOCK_THREADS)
    alone, gain = _by_tile(shared, "inside", "chunk"), pivots.ratio(pivots.by(shared, "inside"), True, False) - 1
    if gain.empty or alone.empty:
        return _absent(
            topic,
            study,
            "there are no points of that family with chunks within and outside it (space `study2`)",
            "plan",
        )
    here = f"The best within the rule gains, over the best outside, {_range(gain)}. Of kernels with the same tiles "
    here += f"that differ in their chunk alone it gains {_spread(alone)}."
    whole = _by_tile(shared.assign(whole=shared["matrices"].eq(shared["chunk"])), "whole", "matrices", "chunk")
    if len(whole):
        here += f" Blocks that work on a whole chunk gain, over blocks of fewer matrices, {_spread(whole)}."
    short = f"Within the rule a tile's best chunk gains {_percent(alone.median())} in the median over the best "
    short += f"outside it, and the best of all tiles {_percent(gain.median())}."
    each = {_verdict(gains, lambda gain: gain >= -NOISE) for gains in (gain, alone)}
    return Finding(topic, study, each.pop() if len(each) == 1 else "partly", here, short, "plan")


def _shared(rows: Any) -> Any:
    return rows[rows["family"].eq("shared") & rows["chunk"].notna()]


def _by_tile(rows: Any, flag: str, decides: str, *among: str) -> Any:
    """What points with a flag gain over points without, of each n and nb, that differ in what decides it alone."""
    pairs = pivots.paired(rows, flag, [name for name in features.COLUMNS if name != decides])
    table = pairs.pivot_table(index=["n", "nb", *among], columns=flag, values="gflops", aggfunc="max")
    return pivots.ratio(table, True, False) - 1


def gain_of(rows: Any, column: str, value: str, other: str) -> Any:
    """By how much the best with a value is above the best with another, of points that have been measured with both.

    Without that a value would gain by having been tried with more of the other parameters.
    """
    return pivots.ratio(pivots.by(pivots.paired(rows, column, features.COLUMNS), column), value, other) - 1


def _absent(topic: str, study: str, why: str, source: str = "memory") -> Finding:
    here = f"{why[0].upper()}{why[1:]}" + ("" if why.endswith(".") else ".")
    return Finding(topic, study, "not measured", here, source=source)


def _verdict(each: Any, holds: Callable[[Any], Any]) -> str:
    share = float(np.mean(holds(each)))
    return "agrees" if share >= MOST else "differs" if share < HALF else "partly"


def _of(true: Any) -> str:
    """At how many orders something holds, or at which if there is but one."""
    if len(true) == 1:
        return pivots.orders(true.index[true])
    return f"{int(true.sum())} of {len(true)} orders"


def _won(won: Any) -> str:
    """Which values are the best, and how often."""
    if len(won) == 1:
        return f"{won.iloc[0]} at {pivots.orders(won.index)}"
    return f"{pivots.counts(won)} of {len(won)} orders"


def _spread(gain: Any) -> str:
    """Smallest, median and largest of gains that are not one an order."""
    ends = f"{_signed(gain.min())} to {_signed(gain.max())}, median {_signed(gain.median())}"
    return f"{ends} ({len(gain)} pairs)" if len(gain) > 1 else _signed(gain.iloc[0])


def _range(gain: Any) -> str:
    """Smallest, median and largest of some gains."""
    low, high = gain.idxmin(), gain.idxmax()
    if len(gain) == 1:
        return f"{_signed(gain[low])} (n = {low})"
    return f"{_signed(gain[low])} (n = {low}) to {_signed(gain[high])} (n = {high}), median {_signed(gain.median())}"


def _typical(gain: Any) -> str:
    if len(gain) == 1:
        return f"{_percent(gain.iloc[0])} (n = {gain.index[0]})"
    return f"{_percent(gain.median())} in the median, {_percent(gain.max())} at most (n = {gain.idxmax()})"


def _percent(gain: float) -> str:
    """A share in percent, a minus sign only where there is one."""
    return _signed(gain).removeprefix("+")


def _signed(gain: float) -> str:
    """A share in percent, with a minus sign that is one, and none before zero."""
    return f"{round(gain, 3) + 0.0:+.1%}".replace("-", "−")
