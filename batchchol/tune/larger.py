"""Larger matrices of one order and batch tuned: all ways to factor them, the best against the current one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from statistics import median

from batchchol.algorithms.on_chip import OnChip, kernel
from batchchol.algorithms.plan_tables import Chosen
from batchchol.algorithms.plans import Plan, values_of, ways
from batchchol.algorithms.shipped_plans import Entry, PlanTable
from batchchol.defaults.entries import Planned
from batchchol.errors import BatchcholError
from batchchol.measure.plan_rows import PlanRow
from batchchol.measure.timing import Sample, disagreement
from batchchol.progress import Progress, Show
from batchchol.tune.choosing.winners import FINAL_SAMPLES, FIRST_SAMPLES, MARGIN, grouped, ns
from kernelgen import KernelSource, SpecError
from kernelgen.emit.panels.border import Border, border
from kernelgen.emit.panels.fused_panel import FusedPanel, fused_panel
from kernelgen.emit.panels.panel import potf2, triangle, trsm

ROUNDS, _CHALLENGERS = 3, 2
# By how much of the time cuBLAS is worth needing CuPy; and what a table says of where it was measured.
_WORTH, _ABOUT = 0.02, ("gpu", "driver", "toolkit", "date")

Measure = Callable[[Plan, int], Sample]
"""Time a plan: it and a number of samples in, the sample out."""


@dataclass(frozen=True)
class Wanted:
    """Larger matrices of an order, and what is used for them now."""

    n: int
    batch: int
    dtype: str
    current: Chosen


@dataclass
class Tried:
    """A plan with the seconds of its samples, and the residual ratio; or the reason why it could not be measured."""

    plan: Plan
    seconds: list[float] = field(default_factory=list)
    ratio: float = 0.0
    message: str = ""

    @property
    def median(self) -> float:
        return median(self.seconds)


def candidates(wanted: Wanted) -> list[Plan]:
    """All ways to factor them, the current one first."""
    return list(dict.fromkeys((wanted.current.plan, *ways(wanted.n, wanted.batch, wanted.dtype))))


def sources(plans: Iterable[Plan], n: int) -> list[KernelSource]:
    """The kernels of plans, for order n."""
    found: list[KernelSource] = []
    for each in plans:
        panel = each.panel
        if isinstance(panel, FusedPanel):
            rows = n - each.border_rows(n)
            found.append(fused_panel(panel.at(n, rows) if each.blocking is None else panel.at(n)))
            if rows < n:
                found.append(border(Border(panel.dtype, panel.order, n - rows)))
        elif isinstance(panel, OnChip):
            found.append(kernel(panel, n))
        else:
            found += [triangle(panel.dtype, panel.order), potf2(panel)]
            with suppress(SpecError):
                # One for matrices that are a tile themselves may have no room for rows below it.
                found.append(trsm(panel))
    return list(dict.fromkeys(found))


def tune_larger(
    measure: Measure,
    wanted: Wanted,
    plans: Sequence[Plan],
    about: Mapping[str, str | int],
    *,
    seconds: float,
    show: Show = lambda _: None,
) -> tuple[Planned, list[Tried]]:
    """The entry for the user's table, and all that was tried, the fastest first.

    Every plan is measured briefly, the current one first, until `seconds` are over; then the best of them alternating
    with the current one, which gives way only past a margin: 3%, or what the rounds of either differ by.

    Raises
    ------
    BatchcholError
        If nothing could be measured.
    """
    begin, current = time.monotonic(), wanted.current.plan
    tried: list[Tried] = []
    for each in plans:
        if tried and time.monotonic() - begin > seconds:
            break
        tried.append(_tried(measure, each, FIRST_SAMPLES))
        failed = sum(bool(done.message) for done in tried)
        show(Progress(len(tried), len(plans), 0, failed, time.monotonic() - begin, None, "ways"))
    known = sorted((each for each in tried if each.seconds), key=lambda each: each.median)
    if not known:
        raise BatchcholError(f"nothing could be measured: {'; '.join(sorted({each.message for each in tried})[:3])}")
    rivals = dict.fromkeys((current, *[each.plan for each in known if each.plan != current][:_CHALLENGERS]))
    taken = [_tried(measure, each, FINAL_SAMPLES) for _ in range(ROUNDS) for each in rivals]
    counted = {**about, "date": date.today().isoformat(), "measured": len(tried), "candidates": len(plans)}
    return _decided(wanted, taken, counted), known + [each for each in tried if not each.seconds]


def table_of(rows: Iterable[PlanRow]) -> PlanTable:
    """The fastest plan of each case among rows that are correct, and the next best.

    Plans in which the host takes part do not count. Of one that takes cuBLAS and one that does not the former has to
    be faster by more than `_WORTH`.
    """
    entries, about = [], dict[str, str]()
    cases = grouped((row for row in rows if row.plan["kind"] != "hybrid"), lambda row: (row.dtype, row.n, row.batch))
    for dtype, n, batch in sorted(cases):
        found = cases[dtype, n, batch]
        best, *others = sorted(found, key=lambda row: row.seconds * (1 + _WORTH * ("columns" in row.plan)))
        second = min(others, key=lambda row: row.seconds, default=None)
        next_best = (None, None) if second is None else (dict(second.plan), ns(second.seconds, batch))
        entries.append(Entry(dtype, n, batch, dict(best.plan), ns(best.seconds, batch), *next_best))
        about = {name: best.about[name] for name in _ABOUT if name in best.about}
    return PlanTable(tuple(entries), about)


def _tried(measure: Measure, how: Plan, samples: int) -> Tried:
    try:
        sample = measure(how, samples)
    except (BatchcholError, SpecError) as error:
        return Tried(how, message=" ".join(str(error).split()))
    return Tried(how, list(sample.seconds), sample.ratio)


def _decided(wanted: Wanted, rounds: Iterable[Tried], about: Mapping[str, str | int]) -> Planned:
    """The winner by alternating measurements: the current plan, unless another is faster by more than the margin."""
    current = wanted.current.plan
    medians: dict[Plan, list[float]] = {}
    for each in rounds:
        if each.seconds:
            medians.setdefault(each.plan, []).append(each.median)
    times = {how: median(found) for how, found in medians.items()}
    if not times:
        raise BatchcholError("nothing could be measured again")
    others = sorted((how for how in times if how != current), key=lambda how: times[how])
    rivals = [how for how in (current, *others[:1]) if how in times]
    margin = max(MARGIN, *(disagreement(min(medians[how]), max(medians[how])) for how in rivals))
    stays = current in times and not (others and times[current] > times[others[0]] * (1 + margin))
    best = current if stays else others[0]
    second = next((how for how in sorted(times, key=lambda how: times[how]) if how != best), None)
    taken = {how: ns(spent, wanted.batch) for how, spent in times.items()}
    users = wanted.current.entry is not None and not wanted.current.entry.kept
    return Planned(
        wanted.dtype,
        wanted.n,
        wanted.batch,
        values_of(best),
        taken[best],
        kept=best == current and not users,
        incumbent=values_of(current),
        incumbent_ns=taken.get(current),
        margin=round(margin, 4),
        runner_up=None if second is None else values_of(second),
        runner_up_ns=None if second is None else taken[second],
        about=dict(about),
    )
