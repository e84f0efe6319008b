"""The later course study's rule: how large a chunk may be for a tile size."""

from __future__ import annotations

from typing import Any

from batchchol.report import pivots, wording
from batchchol.report.statements import Judged, Statement
from batchchol.tune.search import features

BLOCK_THREADS = 1024
"""The most threads of a block, one for each element of a tile of each matrix."""


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
        f"The best within the rule gains, over the best outside, {wording.span(gain)}. Of kernels with the same "
        f"tiles that differ in their chunk alone it gains {wording.spread(alone)}."
    )
    whole = _by_tile(shared.assign(whole=shared["matrices"].eq(shared["chunk"])), "whole", "matrices", "chunk")
    if len(whole):
        here += f" Blocks that work on a whole chunk gain, over blocks of fewer matrices, {wording.spread(whole)}."
    short = (
        f"Within the rule a tile's best chunk gains {wording.percent(alone.median())} in the median over the best "
        f"outside it, and the best of all tiles {wording.percent(gain.median())}."
    )
    each = {wording.verdict(gains >= -wording.NOISE) for gains in (gain, alone)}
    return each.pop() if len(each) == 1 else "partly", here, short


def _shared(rows: Any) -> Any:
    return rows[rows["family"].eq("shared") & rows["chunk"].notna()]


def _by_tile(rows: Any, flag: str, decides: str, *among: str) -> Any:
    """What points with a flag gain over points without, of each n and nb, that differ in what decides it alone."""
    pairs = pivots.paired(rows, flag, [name for name in features.COLUMNS if name != decides])
    table = pairs.pivot_table(index=["n", "nb", *among], columns=flag, values="gflops", aggfunc="max")
    return pivots.ratio(table, True, False) - 1


BLOCK_RULE = Statement(
    "The later course study",
    f"Tiles in shared memory (family shared): chunks of at most {BLOCK_THREADS}/nb² matrices are the best.",
    "others",
    _block_rule,
)
