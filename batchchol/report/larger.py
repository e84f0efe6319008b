"""What a file of plans of larger matrices says: the best of each case, and what each choice is worth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from batchchol.measure.plan_rows import CHOICES, PlanRow
from batchchol.report import gflops_plot
from batchchol.tune.choosing.winners import grouped


def table(rows: Sequence[PlanRow]) -> str:
    """The fastest plan of each case, and by how much the next one is slower, as a Markdown table."""
    lines = [
        "| n | batch | type | GFLOP/s | ratio | next best | plan |",
        "| ---: | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for case in _cases(rows).values():
        best, *others = sorted(case, key=lambda row: row.seconds)
        behind = f"{others[0].seconds / best.seconds - 1:+.1%}" if others else ""
        cells = (best.n, f"{best.batch:,}", best.dtype, f"{best.gflops:,.0f}", f"{best.ratio:.2f}", behind, best.name)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def choices(rows: Sequence[PlanRow]) -> str:
    """Of each choice and each of its values the best rate, over the best of all, as a mean over the cases.

    A value counts where it was measured; in parentheses in how many cases.
    """
    lines = []
    for name in CHOICES:
        shares = _shares(rows, name)
        if len(shares) > 1:
            words = (f"{value} {sum(found) / len(found):.0%} ({len(found)})" for value, found in shares.items())
            lines.append(f"{name:12} {', '.join(words)}")
    return "\n".join(lines)


def _shares(rows: Sequence[PlanRow], name: str) -> dict[str | int, list[float]]:
    """Of a choice, for each of its values: the best rate over the best of all, of each case."""
    shares: dict[str | int, list[float]] = {}
    for case in _cases(rows).values():
        best = max(row.gflops for row in case)
        for value, alike in grouped(case, partial(_choice, name)).items():
            if value is not None:
                shares.setdefault(value, []).append(max(row.gflops for row in alike) / best)
    return dict(sorted(shares.items(), key=_order))


def draw(rows: Sequence[PlanRow], stem: Path) -> list[Path]:
    """GFLOP/s over n of the best of each kind, a line for each kind, dtype and batch."""
    points = []
    for (dtype, batch, kind), alike in grouped(rows, lambda row: (row.dtype, row.batch, _kind(row))).items():
        best = {n: max(row.gflops for row in found) for n, found in grouped(alike, lambda row: row.n).items()}
        label = f"{kind}, {dtype}, {'one' if batch == 1 else f'{batch:,}'}"
        points += [gflops_plot.Point(label, n, gflops, math.nan) for n, gflops in best.items()]
    about = rows[0].about
    subtitle = f"{about.get('gpu', '')}, {about.get('date', '')}, {rows[0].protocol} calls, medians"
    return gflops_plot.draw(points, stem, title="Larger matrices by ways to factor them", subtitle=subtitle)


def _kind(row: PlanRow) -> str:
    """The algorithm of a plan."""
    if "looking" not in row.plan:
        return "one launch"
    ahead = ", ahead" if row.plan["ahead"] else ""
    return f"{row.plan['kind']}, {row.plan['looking']}{ahead}"


def _cases(rows: Iterable[PlanRow]) -> dict[tuple[str, int, int], list[PlanRow]]:
    return grouped(sorted(rows, key=_case), _case)


def _case(row: PlanRow) -> tuple[str, int, int]:
    return row.dtype, row.batch, row.n


def _choice(name: str, row: PlanRow) -> str | int | None:
    return row.plan.get(name)


def _order(item: tuple[str | int, list[float]]) -> tuple[str, float]:
    """Words by the alphabet, numbers by their size."""
    value = item[0]
    return (value, 0.0) if isinstance(value, str) else ("", value)
