"""What the 2017 study concluded, in this project's words, against what a data set shows.

Of the study (Gates, Kurzak, Luszczek, Pei, Dongarra, IPDPSW 2017, doi:10.1109/IPDPSW.2017.18) only the abstract was
at hand: the statement about peers follows it. All others about the study are from memory, and marked so: check them
against its text.
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
"""The later course study's: the most threads of a block, one for each element of a tile of each matrix."""


# A verdict, the numbers, and those in a few words; or why there are none.
Judged = tuple[str, str, str] | str


@dataclass(frozen=True)
class Finding:
    """A statement of a study, and what is said about it here.

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


@dataclass(frozen=True)
class Statement:
    """What a study says, and how it is held against measurements.

    Attributes
    ----------
    topic, study, source : str
        As in `Finding`.
    about : {"speedups", "rows", "one", "others", "forest"}
        What it is held against: speedups over peers, the points of a case, those of one accuracy class, those of all
        families, or the forest.
    judge : callable
        Returns the verdict, the numbers and those in a few words; or why there are none.
    """

    topic: str
    study: str
    about: str
    judge: Callable[[Any], Judged]
    source: str = "memory"

    def against(self, evidence: Any) -> Finding:
        """What the evidence says of the statement."""
        judged = self.judge(evidence)
        if isinstance(judged, str):
            judged = "not measured", f"{judged[0].upper()}{judged[1:].removesuffix('.')}.", ""
        return Finding(self.topic, self.study, *judged, self.source)


def findings(
    rows: Any, math: str, forest: Forest | str, speedups: Speedups | None, similar: Any | None = None
) -> list[Finding]:
    """Every statement, held against the points of a case; all but those about math use one accuracy class.

    `similar` has the points of other families as well, for what is said about one of them.
    """
    one = rows[rows["math"] == math]
    others = one if similar is None else similar[similar["math"] == math]
    evidence = {"speedups": speedups, "rows": rows, "one": one, "others": others, "forest": forest}
    return [statement.against(evidence[statement.about]) for statement in STATEMENTS]


def _peers(speedups: Speedups | None) -> Judged:
    if speedups is None:
        return "no comparison was given (`--compare FILE` of `python -m batchchol compare`)"
    least = speedups.table.min(axis=1)
    small, slower = least[least.index <= _SMALL], least[least < 1 - NOISE]
    ends = [f"{least[n]:.1f} at n = {n}" for n in (least.index[0], least.index[-1])]
    here = f"The fastest peer takes {ends[0]} and {ends[1]} times as long as the library ({speedups.note})."
    here += f" The library is slower at {pivots.orders(slower.index, least.index)}." if len(slower) else ""
    short = f"The library is {least.min():.1f} to {least.max():.1f} times as fast as the fastest peer."
    return _verdict((small if len(small) else least) > 1 + NOISE), here, short


def _math(rows: Any) -> Judged:
    gain = gain_of(rows, "math", "fast", "ieee")
    if gain.empty:
        return "only one of the two was measured"
    here = f"Fast math gains {_range(gain)}; more than {NOISE:.0%} at {_of(gain > NOISE)}."
    small, large = gain[gain.index <= _SMALL], gain[gain.index >= _LARGE]
    verdict = _verdict(gain > NOISE)
    if len(small) and len(large):
        here += (
            f" On average it gains {small.mean():.1%} to n = {_SMALL} and {large.mean():.1%} from n = {_LARGE} on."
        )
        if small.mean() <= large.mean() and verdict == "agrees":
            verdict = "partly"
    return verdict, here, f"Fast math gains {_typical(gain)}."


def _tiles(rows: Any) -> Judged:
    table = pivots.by(rows, "nb")
    won = pivots.winners(table)
    if won.empty:
        return "one nb only"
    here = f"Best: {pivots.where(won, 'nb')}."
    small = [nb for nb in table.columns if nb < _LARGE_TILE]
    gain = table.drop(columns=small).max(axis=1) / table[small].max(axis=1) - 1
    gain = gain[gain.index >= _LARGE].dropna()
    if _LARGE_TILE - 1 not in table or gain.empty:
        return here
    here += f" From n = {_LARGE} on tiles of {_LARGE_TILE} or more gain, over smaller ones, {_range(gain)}."
    return (
        _verdict(gain >= -NOISE),
        here,
        f"From n = {_LARGE} on tiles of {_LARGE_TILE} or more gain {_typical(gain)}.",
    )


def _looking(rows: Any) -> Judged:
    table = pivots.by(rows, "looking")
    won = pivots.winners(table)
    if "top" not in table or won.empty:
        return "there is no choice with top looking in it"
    behind = 1 - pivots.of_best(table)["top"].loc[won.index].dropna()
    here = (
        f"Best: {_won(won)}. Top looking is at most {behind.max():.1%} behind the best (n = {behind.idxmax()}) and "
        f"within {NOISE:.0%} of it at {_of(behind <= NOISE)}."
    )
    if "right" in table:
        here += f" Over right looking it gains {_range(pivots.ratio(table, 'top', 'right') - 1)}."
    short = f"Top looking is the best, or within {NOISE:.0%} of it, at {_of(behind <= NOISE)}."
    return _verdict(behind <= NOISE), here, short


def _chunking(rows: Any) -> Judged:
    gain = pivots.ratio(pivots.by(rows, "layout"), "chunked", "interleaved") - 1
    if gain.empty:
        return "only one of the two layouts was measured"
    helped, hurt = (pivots.orders(gain.index[some], gain.index) for some in (gain > NOISE, gain < -NOISE))
    here = f"Chunks gain {_range(gain)}; more than {NOISE:.0%} at {helped}, a loss of more than that at {hurt}."
    return _verdict(gain > NOISE), here, f"Chunks gain {_typical(gain)}."


def _chunk(rows: Any) -> Judged:
    chunked = rows[rows["chunk"].notna()]
    table = pivots.by(chunked.assign(chunk=chunked["chunk"].astype(int)), "chunk")
    won = pivots.winners(table)
    small = [chunk for chunk in table.columns if chunk in {32, 64}]
    if won.empty or not small or len(small) == len(table.columns):
        return "there is no choice between small and other chunks"
    behind = 1 - pivots.of_best(table)[small].max(axis=1).loc[won.index].dropna()
    here = (
        f"Best: {_won(won)}. The better of 32 and 64 is at most {behind.max():.1%} behind the best "
        f"(n = {behind.idxmax()}); the worst size costs up to {1 - pivots.of_best(table).min(axis=1).min():.0%}."
    )
    often = won.value_counts().index[0]
    return _verdict(behind <= NOISE), here, f"Chunks of {often} are the best at {_of(won == often)}."


def _unrolling(rows: Any) -> Judged:
    gain = gain_of(rows, "unroll", "full", "tiles")
    if gain.empty:
        return "only one of the two was measured"
    won, lost = gain[gain > NOISE], gain[gain < -NOISE]
    most = f" (at most {won.max():.0%}, n = {won.idxmax()})" if len(won) else ""
    least = f" (at most {-lost.min():.0%}, n = {lost.idxmin()})" if len(lost) else ""
    here = (
        f"Straight-line code gains more than {NOISE:.0%} at {pivots.orders(won.index, gain.index)}{most}, and loses "
        f"more than that at {pivots.orders(lost.index, gain.index)}{least}. "
        f"It was measured to n = {gain.index.max()}."
    )
    holds = np.where(gain.index <= _STRAIGHT, gain >= -NOISE, gain <= NOISE)
    return _verdict(holds), here, f"Straight-line code wins at {pivots.orders(won.index, gain.index)}."


def _cache(rows: Any) -> Judged:
    gain = gain_of(rows, "cache", "l1", "shared")
    if gain.empty:
        return "there is no choice"
    alike = gain.abs() <= _LITTLE
    here = f"Favouring L1 gains {_range(gain)}; it makes no more than {_LITTLE:.0%} of a difference at {_of(alike)}."
    return _verdict(alike), here, f"Favouring L1 gains {_typical(gain)}."


def _importance(forest: Forest | str) -> Judged:
    if isinstance(forest, str):
        return forest
    ranked = ", ".join(f"{line.parameter.name} ({_signed(line.share)})" for line in forest.importances)
    return "shown", f"By how much of the variance the squared error grows without a parameter's values: {ranked}.", ""


def rule_shares(rows: Any) -> Any:
    """Of the shared family: a line a tile size, a column a chunk: its share of the best chunk there, mean over n.

    Of kernels that differ in nothing but their chunk: a block may work on more matrices where chunks are larger, and
    what that does is no merit of the chunk.
    """
    pairs = pivots.paired(_shared(rows).astype({"nb": "Int64", "chunk": "Int64"}), "chunk", features.COLUMNS)
    best_of = pairs.pivot_table(index=["n", "nb"], columns="chunk", values="gflops", aggfunc="max")
    return pivots.of_best(best_of).groupby("nb").mean()


def _block_rule(rows: Any) -> Judged:
    shared = _shared(rows)
    shared = shared.assign(inside=shared["chunk"] * shared["nb"] ** 2 <= BLOCK_THREADS)
    alone, gain = _by_tile(shared, "inside", "chunk"), pivots.ratio(pivots.by(shared, "inside"), True, False) - 1
    if gain.empty or alone.empty:
        return "there are no points of that family with chunks within and outside it (space `study2`)"
    here = (
        f"The best within the rule gains, over the best outside, {_range(gain)}. Of kernels with the same tiles that "
        f"differ in their chunk alone it gains {_spread(alone)}."
    )
    whole = _by_tile(shared.assign(whole=shared["matrices"].eq(shared["chunk"])), "whole", "matrices", "chunk")
    if len(whole):
        here += f" Blocks that work on a whole chunk gain, over blocks of fewer matrices, {_spread(whole)}."
    short = (
        f"Within the rule a tile's best chunk gains {_percent(alone.median())} in the median over the best outside "
        f"it, and the best of all tiles {_percent(gain.median())}."
    )
    each = {_verdict(gains >= -NOISE) for gains in (gain, alone)}
    return each.pop() if len(each) == 1 else "partly", here, short


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


def _verdict(holds: Any) -> str:
    """What is said of a statement that holds at these of the orders."""
    share = float(np.mean(holds))
    return "agrees" if share >= MOST else "differs" if share < HALF else "partly"


def _of(true: Any) -> str:
    """At how many orders something holds, or at which if there is only one."""
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
    """A share in percent, with a true minus sign, and none before zero."""
    return f"{round(gain, 3) + 0.0:+.1%}".replace("-", "−")


BLOCK_RULE = Statement(
    "The later course study",
    f"Tiles in shared memory (family shared): chunks of at most {BLOCK_THREADS}/nb² matrices are the best.",
    "others",
    _block_rule,
    "plan",
)
STATEMENTS = (
    Statement(
        "Peers (figure 14)",
        "For very small matrices its kernels are faster than traditional ones, which work on ordinary arrays.",
        "speedups",
        _peers,
        "abstract",
    ),
    Statement("Math (figure 13)", "Fast math is faster, and gains most where matrices are small.", "rows", _math),
    Statement(
        "Tile size (figure 15)",
        f"Larger matrices want larger tiles, up to nb = 8: from n = {_LARGE} on the best is not below {_LARGE_TILE}.",
        "one",
        _tiles,
    ),
    Statement("Looking (figure 16)", "The laziest order of evaluation, top looking, is the best.", "one", _looking),
    Statement("Chunking (figure 17)", "Chunks make the interleaved layout faster.", "one", _chunking),
    Statement("Chunk size (figure 18)", "Small chunks, of 32 or 64 matrices, are the best.", "one", _chunk),
    Statement(
        "Unrolling (figure 19)",
        f"Straight-line code wins for small matrices, to about n = {_STRAIGHT}, and loops over tiles after that.",
        "one",
        _unrolling,
    ),
    Statement("On-chip memory", "Whether L1 or shared memory is favoured matters little.", "one", _cache),
    Statement(
        "Importance (table I)",
        "The parameters are ranked by such a forest, with n among them.",
        "forest",
        _importance,
        "plan",
    ),
    BLOCK_RULE,
)
"""What the studies say, in the order of the page."""
