"""What the 2017 study concluded, in this project's words, against what a data set shows.

The statements are those of its text (Gates, Kurzak, Luszczek, Pei, Dongarra, IPDPSW 2017,
doi:10.1109/IPDPSW.2017.18): a P100, float32, batch 16,384, one thread to a matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from batchchol.report import pivots, wording
from batchchol.report.course_rule import BLOCK_RULE
from batchchol.report.importance import Forest
from batchchol.report.speedups import Speedups
from batchchol.report.statements import Finding, Judged, Statement, gain_of
from batchchol.report.wording import LITTLE, NOISE

_SMALL, _STRAIGHT, _LARGE = 16, 20, 32
_TALL = 40
"""Past this order nb = 1 is bound by memory, as the study has it."""
_LEVEL = 8
"""The tile size near which speed levels off."""
_FAST_GAIN = 800 / 600 - 1
_FAR = 0.2
_PARAMETERS = ("nb", "looking", "layout", "chunk", "unroll", "cache")


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
    return wording.verdict((small if len(small) else least) > 1 + NOISE), here, short


def _overtaken(speedups: Speedups | None) -> Judged:
    if speedups is None or speedups.thread.empty or speedups.thread.index.max() < _LARGE:
        return f"no comparison of the thread family with a peer at n = {_LARGE} or more was given"
    least = speedups.thread.min(axis=1)
    behind = least[least < 1 - NOISE]
    last = f"at n = {least.index[-1]} it is {1 / least.iloc[-1]:.1f} times as fast"
    if behind.empty:
        return "differs", f"No peer is faster than the thread family; the fastest: {last}.", ""
    here = f"The fastest peer overtakes the thread family at {pivots.orders(behind.index, least.index)}; {last}."
    late = behind.index.min() > _SMALL and behind.index.max() == least.index.max()
    return "agrees" if late else "partly", here, ""


def _math(rows: Any) -> Judged:
    gain = gain_of(rows, "math", "fast", "ieee")
    if gain.empty:
        return "only one of the two was measured"
    best = rows.groupby("math")["gflops"].max()
    at_best = best["fast"] / best["ieee"] - 1
    here = (
        f"At best {wording.rate(best['fast'])} GFLOP/s with fast math and {wording.rate(best['ieee'])} with `ieee`, "
        f"{wording.percent(at_best)} more. Of each n fast math gains {wording.span(gain)}; more than {NOISE:.0%} at "
        f"{wording.at(gain > NOISE)}."
    )
    small, large = gain[gain.index <= _SMALL], gain[gain.index >= _LARGE]
    if len(small) and len(large):
        here += f" On average {small.mean():.1%} to n = {_SMALL} and {large.mean():.1%} from n = {_LARGE} on."
    verdict = "agrees" if at_best >= _FAST_GAIN - LITTLE else "partly" if at_best > NOISE else "differs"
    return verdict, here, f"Fast math gains {wording.typical(gain)}."


def _no_tiles(rows: Any) -> Judged:
    table = pivots.by(rows[rows["n"] < _STRAIGHT], "nb")
    table = table[table.notna().sum(axis=1) > 1]
    if table.empty:
        return f"there is no choice of nb below n = {_STRAIGHT}"
    behind = 1 - pivots.of_best(table).min(axis=1)
    here = f"The worst nb is behind the best by {_behind(behind)}; by no more than {LITTLE:.0%} at "
    return wording.verdict(behind <= LITTLE), f"{here}{wording.at(behind <= LITTLE)}.", ""


def _memory_bound(rows: Any) -> Judged:
    table = pivots.by(rows, "nb")
    if 1 not in table:
        return "nb = 1 was not measured"
    alone, share = table[1].dropna(), pivots.of_best(table)[1].dropna()
    large = alone[alone.index > _TALL]
    if large.empty or len(large) == len(alone):
        return f"nb = 1 was not measured on both sides of n = {_TALL}"
    before = alone[alone.index <= _TALL].max()
    slow = (large < before) & (share[large.index] < wording.HALF)
    # Two elements are read for each multiply-add, of two operations.
    moved = large * 1e9 * np.dtype(rows["dtype"].iloc[0]).itemsize / rows["copy_bytes_per_second"].max()
    here = (
        f"Past n = {_TALL} nb = 1 reaches {wording.rate(large.max())} GFLOP/s at most, "
        f"{share[large.index].max():.0%} of the best nb, and before it {wording.rate(before)}"
    )
    if moved.notna().any():
        here += "; but two elements a multiply-add, all from memory, would be "
        here += f"{moved.min():.0%} to {moved.max():.0%} of the copy rate"
    here += "."
    if not slow.any():
        return "differs", here, ""
    return "agrees" if wording.verdict(slow & (moved >= wording.HALF)) == "agrees" else "partly", here, ""


def _level(rows: Any) -> Judged:
    table = pivots.by(rows[rows["n"] >= _LARGE], "nb")
    won = pivots.winners(table)
    if _LEVEL not in table or won.empty:
        return f"there is no choice with nb = {_LEVEL} in it from n = {_LARGE} on"
    enough = (pivots.of_best(table).loc[won.index] >= 1 - LITTLE).idxmax(axis=1)
    near = (enough - _LEVEL).abs() <= 1
    here = f"From n = {_LARGE} on the smallest nb within {LITTLE:.0%} of the best is {pivots.counts(enough)}."
    gain = pivots.ratio(table, 9, _LEVEL) - 1
    here += f" Over nb = {_LEVEL}, nb = 9 gains {wording.span(gain)}." if len(gain) else ""
    short = f"From n = {_LARGE} on the best nb is {pivots.counts(won)}."
    return wording.verdict(near), here, short


def _small_looking(rows: Any) -> Judged:
    table = pivots.by(rows[rows["n"] <= _STRAIGHT], "looking")
    won = pivots.winners(table)
    if won.empty:
        return f"there is no choice to n = {_STRAIGHT}"
    behind = 1 - pivots.of_best(table).loc[won.index].min(axis=1)
    here = f"The worst looking is behind the best by {_behind(behind)}; by no more than {LITTLE:.0%} at "
    return wording.verdict(behind <= LITTLE), f"{here}{wording.at(behind <= LITTLE)}.", ""


def _looking(rows: Any) -> Judged:
    table = pivots.by(rows[rows["n"] > _STRAIGHT], "looking")
    if not {"top", "left", "right"} <= set(table.columns):
        return f"past n = {_STRAIGHT} not all three were measured"
    table = table.dropna()
    holds = (table["top"] > table["left"]) & (table["left"] > table["right"])
    behind = 1 - pivots.of_best(table)["top"]
    here = (
        f"In this order at {pivots.orders(holds.index[holds], holds.index)}. Top looking is at most "
        f"{behind.max():.1%} behind the best (n = {behind.idxmax()}); over right looking it gains "
        f"{wording.span(pivots.ratio(table, 'top', 'right') - 1)}."
    )
    short = f"Past n = {_STRAIGHT} top looking is the best, or within {NOISE:.0%} of it, at "
    return wording.verdict(holds), here, f"{short}{wording.at(behind <= NOISE)}."


def _worst(rows: Any) -> Judged:
    known = rows[rows["layout"].isin(["chunked", "interleaved"]) & rows["unroll"].notna()]
    table = pivots.by(known.assign(code=known["layout"] + " " + known["unroll"]), "code")
    if "interleaved full" not in table or len(table.columns) < 2:
        return "only one of layout and unrolling was varied"
    table = table[table["interleaved full"].notna() & (table.notna().sum(axis=1) > 1)]
    if table.empty:
        return "there is no order with a choice"
    worst = table["interleaved full"] <= table.min(axis=1) * (1 + NOISE)
    ahead = pivots.of_best(table)["interleaved full"]
    here = (
        f"The worst of the four at {pivots.orders(worst.index[worst], worst.index)}; within {NOISE:.0%} of the best "
        f"at {pivots.orders(ahead.index[ahead >= 1 - NOISE], ahead.index)}."
    )
    gain = pivots.ratio(pivots.by(known, "layout"), "chunked", "interleaved") - 1
    here += f" Chunks, by the best with and without, gain {wording.span(gain)}." if len(gain) else ""
    return wording.verdict(worst), here, f"Chunks gain {wording.typical(gain)}." if len(gain) else ""


def _chunks(rows: Any) -> Any:
    """GFLOP/s of the best of each chunk size, at orders that have a choice with 32 in it; else empty."""
    chunked = rows[rows["chunk"].notna()]
    table = pivots.by(chunked.assign(chunk=chunked["chunk"].astype(int)), "chunk")
    return table[table[32].notna() & (table.notna().sum(axis=1) > 1)] if 32 in table else table.iloc[:0]


def _small_chunks(rows: Any) -> Judged:
    table = _chunks(rows)
    if table.empty or 64 not in table:
        return "there is no choice between chunks of 32, 64 and others"
    behind, apart = 1 - pivots.of_best(table)[32], 1 - table[64] / table[32]
    won = pivots.winners(table)
    here = (
        f"Best: {wording.best(won)}. Chunks of 32 are at most {behind.max():.1%} behind the best "
        f"(n = {behind.idxmax()}), those of 64 at most {apart.max():.1%} behind them (n = {apart.idxmax()})."
    )
    often = won.value_counts().index[0]
    short = f"Chunks of {often} are the best at {wording.at(won == often)}."
    return wording.verdict((behind <= NOISE) & (apart <= LITTLE)), here, short


def _large_chunks(rows: Any) -> Judged:
    table = _chunks(rows)
    if not {128, 256, 512} <= set(table.columns) or table.empty:
        return "not all of 32, 128, 256 and 512 were measured"
    behind = 1 - table[[128, 256, 512]].div(table[32], axis=0).dropna()
    here = ", ".join(f"{chunk}: {_behind(behind[chunk])}" for chunk in behind)
    holds = (behind[128] <= _FAR) & (behind[256] <= _FAR) & (behind[512] > _FAR)
    far = behind.index[behind[512] > _FAR]
    here = f"Behind chunks of 32: {here}. 512 by more than {_FAR:.0%} at {pivots.orders(far, behind.index)}."
    return wording.verdict(holds), here, ""


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
    return wording.verdict(holds), here, f"Straight-line code wins at {pivots.orders(won.index, gain.index)}."


def _cache(rows: Any) -> Judged:
    gain = gain_of(rows, "cache", "l1", "shared")
    if gain.empty:
        return "there is no choice"
    alike = gain.abs() <= LITTLE
    here = f"Favouring L1 gains {wording.span(gain)}; it makes no more than {LITTLE:.0%} of a difference at "
    return wording.verdict(alike), f"{here}{wording.at(alike)}.", f"Favouring L1 gains {wording.typical(gain)}."


def _everywhere(rows: Any) -> Judged:
    least = {}
    for name in _PARAMETERS:
        table = pivots.by(rows[rows[name].notna()], name)
        if len(pivots.winners(table)) > 1:
            least[name] = pivots.of_best(table).min().where(table.notna().all()).dropna()
    if not least:
        return "no parameter was varied at more than one order"
    kept = {name: shares.idxmax() for name, shares in least.items() if len(shares) and shares.max() >= 1 - NOISE}
    found = ", ".join(f"{name} = {value}" for name, value in kept.items()) or "none"
    here = f"Values within {NOISE:.0%} of the best at every n: {found}, of {len(least)} parameters."
    return wording.verdict([name not in kept for name in least]), here, ""


def _importance(forest: Forest | str) -> Judged:
    if isinstance(forest, str):
        return forest
    ranked = ", ".join(f"{line.parameter.name} ({wording.signed(line.share)})" for line in forest.importances)
    return "shown", f"By how much of the variance the squared error grows without a parameter's values: {ranked}.", ""


def _behind(shares: Any) -> str:
    """Smallest and largest of how far something is behind."""
    if len(shares) == 1:
        return f"{wording.percent(shares.iloc[0])} (n = {shares.index[0]})"
    return f"{wording.percent(shares.min())} to {wording.percent(shares.max())} (n = {shares.idxmax()})"


STATEMENTS = (
    Statement(
        "Peers (figure 14)",
        "For very small matrices its kernels are faster than traditional ones, which work on ordinary arrays.",
        "speedups",
        _peers,
    ),
    Statement(
        "Large matrices",
        "A library's kernel with a whole block to a matrix overtakes one thread to a matrix at larger n.",
        "speedups",
        _overtaken,
    ),
    Statement(
        "Math (figure 13)",
        "At best 600 GFLOP/s with ieee and nearly 800, a third more, with fast math.",
        "rows",
        _math,
    ),
    Statement("Small tiles", f"Tiling makes no difference below n = {_STRAIGHT}.", "one", _no_tiles),
    Statement("Tiles of 1", f"Past n = {_TALL} kernels with nb = 1 are bound by memory.", "one", _memory_bound),
    Statement("Tile size (figure 15)", f"Speed levels off near nb = {_LEVEL}.", "one", _level),
    Statement("Small looking", f"Looking makes no difference to n = {_STRAIGHT}.", "one", _small_looking),
    Statement(
        "Looking (figure 16)",
        f"Past n = {_STRAIGHT} top looking is faster than left, left than right.",
        "one",
        _looking,
    ),
    Statement("Chunking (figure 17)", "Code without chunks and fully unrolled is always the worst.", "one", _worst),
    Statement("Chunk size (figure 18)", "Chunks of 32 matrices are the best, 64 near them.", "one", _small_chunks),
    Statement("Large chunks", "Chunks of 128 and 256 are slightly slower, 512 far slower.", "one", _large_chunks),
    Statement("Unrolling (figure 19)", f"Full unrolling pays to n = {_STRAIGHT}.", "one", _unrolling),
    Statement(
        "On-chip memory",
        "Whether L1 or shared memory is favoured does not matter: its %IncMSE is negative.",
        "one",
        _cache,
    ),
    Statement("Every n", "No value of a parameter is the best everywhere.", "one", _everywhere),
    Statement(
        "Importance (table I)",
        "The parameters are ranked by such a forest, with n among them.",
        "forest",
        _importance,
    ),
    BLOCK_RULE,
)
"""What the studies say, in the order of the page."""
