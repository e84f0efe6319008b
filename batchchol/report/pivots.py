"""The best that a value of a parameter reaches at each order, whatever the other parameters are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from batchchol.report.data import SPEC_COLUMNS


def by(rows: Any, column: str) -> Any:
    """GFLOP/s of the best point: a line an order, a column a value; NaN where there is no point."""
    return rows.pivot_table(index="n", columns=column, values="gflops", aggfunc="max")


def paired(rows: Any, column: str, among: Sequence[str]) -> Any:
    """The rows that have a partner which differs in this column, and in no other of those `among`."""
    keys = [name for name in among if name != column and rows[name].nunique(dropna=False) > 1] or ["n"]
    return rows[rows.groupby(keys, dropna=False)[column].transform("nunique") > 1]


def of_best(table: Any) -> Any:
    """The same as shares of the best of each line."""
    return table.div(table.max(axis=1), axis=0)


def winners(table: Any) -> Any:
    """Which column is the best at each order, of the orders at which there is a choice."""
    return table[table.notna().sum(axis=1) > 1].idxmax(axis=1)


def ratio(table: Any, over: Any, under: Any) -> Any:
    """One column over another, at the orders that have both; empty if a column is missing."""
    if over not in table or under not in table:
        return table.iloc[:0, 0] if len(table.columns) else table.iloc[:0]
    return (table[over] / table[under]).dropna()


def fastest(rows: Any, columns: Sequence[str]) -> Any:
    """The fastest row of each combination of these columns."""
    places = rows.groupby(list(columns), sort=True)["gflops"].idxmax()
    return rows.loc[places].reset_index(drop=True)


def own_code(rows: Any) -> Any:
    """A line for each finalist: its order `n`, and `ratio`, its own code's speed over that of code for any block."""
    known = rows.assign(chunk=rows["chunk"].fillna(0), any_block=rows["any_block"].fillna(False).astype(bool))
    both = known[known["again"]].merge(known[known["any_block"]], on=[*SPEC_COLUMNS], suffixes=("", "_any"))
    return both.assign(ratio=both["gflops"] / both["gflops_any"])[["n", "ratio"]]


def orders(ns: Sequence[int], every: Sequence[int] = ()) -> str:
    """Numbers in words: "n = 2, 4, 8", "n = 2 to 8" where those are neighbours among `every`, or "no n"."""
    if not len(ns):
        return "no n"
    place = {int(n): index for index, n in enumerate(sorted(every))}
    runs: list[list[int]] = []
    for n in sorted(int(n) for n in ns):
        if runs and place and place[n] == place[runs[-1][-1]] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    words = (f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"n = {', '.join(words)}"


def counts(won: Any) -> str:
    """How often each value wins, most often first: "top at 12, left at 3"."""
    return ", ".join(f"{value} at {count}" for value, count in Counter(won).most_common())


def where(won: Any, name: str) -> str:
    """Where each value wins: "nb = 2 at n = 4, 8; nb = 4 at n = 16"."""
    each = sorted(set(won))
    return "; ".join(f"{name} = {int(value)} at {orders(won.index[won == value], won.index)}" for value in each)
