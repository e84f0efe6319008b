"""Why a kernel and a layout are used for an order and a batch, how long they take, and the next best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import log2
from typing import Literal, NamedTuple

from batchchol.defaults.elsewhere import CHANGED
from batchchol.defaults.entries import Tuned
from batchchol.defaults.lookup import (
    Choice,
    array_layout,
    default_choice,
    default_layout,
    shipped_placements,
    tuned_choices,
    tuned_placement,
    within_reach,
)
from batchchol.defaults.request import Request
from batchchol.defaults.shipped import source_of
from batchchol.defaults.tables import Evidence, nearest, values_of
from batchchol.measure.timing import QUIET
from batchchol.tune.choosing.winners import MARGIN
from kernelgen import TARGETS, KernelSpec, Layout, Schedule


class Timing(NamedTuple):
    """Nanoseconds of a matrix that a kernel took, in a batch of `batch` of order `n`.

    `said` is what else differed from now, such as the layout, empty if nothing did; `where` is the machine, empty
    if it is this one.
    """

    ns: float
    n: int
    batch: int
    said: str = ""
    where: str = ""


@dataclass(frozen=True)
class Explanation:
    """What is used: a kernel on a layout, each with its reason.

    `timing` is what was measured of the kernel, at the entry's order and batch, None if nothing was; `runner_up` is
    the next best there, which may be faster by up to `margin`, a part of its time: the table then stays as it was.
    """

    layout: Layout
    layout_reason: str
    spec: KernelSpec
    reason: str
    timing: Timing | None = None
    runner_up: tuple[Schedule, float] | None = None
    margin: float = MARGIN


def of_arrays(asked: Request) -> Explanation:
    """What `cholesky` does with an array (batch, n, n)."""
    layout = array_layout(asked.problem.n, asked.size, math=asked.problem.math, **asked.where)
    return of_layout(asked, layout, _why(asked, "arrays", asked.problem.math))


def of_batches(asked: Request, layout_math: str | None = None) -> Explanation:
    """What `factor` does with a batch in the default layout, or in the default layout of a math."""
    layout = default_layout(asked.problem.n, batch=asked.batch, math=layout_math, **asked.where)
    return of_layout(asked, layout, _why(asked, "layouts", layout_math))


def usual_layout(asked: Request, kind: str) -> Layout:
    """The usual layout of a kind: NumPy's order, or the chunk of batches."""
    if kind == "chunked":
        return default_layout(asked.problem.n, batch=asked.batch, **asked.where)
    return Layout.canonical() if kind == "canonical" else Layout.interleaved()


def of_layout(asked: Request, layout: Layout, reason: str = "it was asked for") -> Explanation:
    """What is used on a layout."""
    request = asked.on(layout)
    choice = default_choice(request)
    own = tuned_choices(replace(request, batch=None)) if asked.device else ()
    confirmed = _confirmed(choice, own, asked.size)
    if entry := confirmed or choice.tuned:
        return _by_user(choice, entry, layout, reason)
    near = f", near batch {choice.batch:,}" if choice.batch else ""
    times = _evidence(choice, asked.size, layout, source_of(asked.target, asked.arch).table.measured)
    return Explanation(layout, reason, choice.spec, choice.origin + near, *times)


def _confirmed(choice: Choice, own: Iterable[Choice], batch: int) -> Tuned | None:
    """The user's entry that confirmed the choice that comes with the library."""
    near = [each for each in own if within_reach(each.batch, batch) and each.spec == choice.spec]
    kept = [each for each in near if each.tuned and each.tuned.kept]
    return nearest(kept, batch).tuned if kept and choice.tuned is None else None


def _by_user(choice: Choice, entry: Tuned, layout: Layout, reason: str) -> Explanation:
    said = entry.about
    about = [f"{name} {said[name]}" for name in ("driver", "toolkit", "protocol") if name in said]
    about += [f"{said['measured']} kernels measured"] if "measured" in said and entry.runner_up else []
    words = ", ".join(about)
    words = f"tuned at n={entry.n}, batch={entry.batch:,} on {said.get('date', 'an unknown day')} ({words})"
    if entry.kept:
        words = f"{choice.origin}; {words}: {_why_kept(entry)}"
    elif entry.schedule == entry.incumbent:
        words = f"{choice.origin}: {words}"
    else:
        before = "could not run" if entry.incumbent_ns is None else f"took {entry.incumbent_ns:g} ns"
        words = f"{choice.origin}: {words}; what was used before {before}, the margin was {entry.margin:.1%}"
    timing = Timing(entry.ns, entry.n, entry.batch)
    return Explanation(layout, reason, choice.spec, words, timing, _runner_up(entry), entry.margin)


def _runner_up(measured: Tuned | Evidence) -> tuple[Schedule, float] | None:
    """The next best schedule and its nanoseconds of a matrix; None if there was none."""
    schedule, ns = measured.runner_up, measured.runner_up_ns
    return None if schedule is None or ns is None else (schedule, ns)


def _why_kept(entry: Tuned) -> str:
    """Why another kernel did not replace this one."""
    if entry.runner_up is None:
        return "no other was measured there"
    if entry.margin > QUIET:
        return (
            f"measurements of the same kernel differ by {entry.margin:.0%}, so that nothing can replace it; "
            "end other work on this machine and tune again"
        )
    return f"no other was faster by more than {entry.margin:.1%}"


def _evidence(
    choice: Choice, batch: int, layout: Layout, measured: Mapping[str, str]
) -> tuple[Timing | None, tuple[Schedule, float] | None]:
    if not choice.evidence or CHANGED in choice.origin:
        return None, None
    found = min(choice.evidence, key=lambda each: abs(log2(each.batch / max(batch, 1))))
    said = _otherwise(choice, found, layout)
    timing = Timing(found.ns, choice.n, found.batch, said, measured.get(choice.case.dtype if choice.case else "", ""))
    return timing, _runner_up(found)


def _otherwise(choice: Choice, found: Evidence, layout: Layout) -> str:
    """How what was measured differs from what is used."""
    spec, case = choice.spec, choice.case
    assert case is not None, "what has evidence is an entry"
    dtype, math, chunk = case.dtype, found.math or case.math, found.chunk or case.chunk
    words = [case.layout if case.layout != layout.kind else ""]
    words += [f"chunks of {chunk}" if layout.chunk and chunk not in (None, layout.chunk) else ""]
    words += [dtype if dtype != spec.problem.dtype else "", math if math != spec.problem.math else ""]
    return ", ".join(filter(None, words))


def _why(asked: Request, section: Literal["layouts", "arrays"], math: str | None) -> str:
    """Why this layout is chosen."""
    n, dtype, batch, target, arch = asked.problem.n, asked.problem.dtype, asked.size, asked.target, asked.arch
    if own := tuned_placement(section, n, batch, target, dtype, arch, asked.device, math):
        before = "" if own.incumbent_ns is None else f", {own.ns:g} ns a matrix against {own.incumbent_ns:g}"
        return f"the user's table, tuned at batch {own.batch:,} on {own.about.get('date')}{before} in {own.incumbent}"
    if row := shipped_placements(section, n, target, dtype, arch, math):
        chosen = nearest(row, batch)
        near = f", near batch {chosen.batch:,}" if chosen.batch else ""
        return f"{source_of(target, arch).reason}; {section} up to order {chosen.n}{near}"
    if TARGETS[target].gpu:
        return "no layout was measured: chunks of as many matrices as a warp has threads"
    if section == "arrays":
        return "kernels of a CPU transpose arrays in cache"
    return "chunks of as many matrices as a register holds"


def differences(schedule: Schedule, other: Schedule) -> str:
    """What another schedule does otherwise, in words."""
    own, theirs = values_of(schedule), values_of(other)
    same = own["family"] == theirs["family"]
    names = [name for name in own | theirs if not same or own.get(name) != theirs.get(name)]
    words = ", ".join(f"{name}={theirs.get(name)}" for name in names if name != "family")
    return words if same else f"family {theirs['family']}, {words}"
