"""Into which layout batches and arrays go, by what the best schedules of each layout took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from batchchol.defaults.lookup import array_layout, default_layout, tuned_placement
from batchchol.defaults.user import Placed, Tuned
from batchchol.tune.contest import Site
from batchchol.tune.make_tables import packed_seconds
from kernelgen import Layout
from kernelgen.axes import MATHS

_DIGITS = 4


def placements(entries: Iterable[Tuned], site: Site, floor_seconds: float) -> list[Placed]:
    """The layouts of batches and arrays that entries of one session speak for: those of today unless another is
    faster by more than the margin of either.

    A CPU has one layout for each of them. Only the math that is used where nobody says counts.

    Parameters
    ----------
    entries : iterable of Tuned
        Of any cases, orders and batches.
    site : Site
        The device; its rate of copies, and a launch of `floor_seconds` each, is what packing and unpacking cost.
    """
    if not site.gpu:
        return []
    usual = [entry for entry in entries if entry.case.math == MATHS[0]]
    usual.sort(key=_where)
    return [
        placed
        for where, found in groupby(usual, _where)
        for placed in _of_one(where, list(found), site, floor_seconds)
    ]


def _where(entry: Tuned) -> tuple[str, int, int]:
    return entry.case.dtype, entry.n, entry.batch


def _of_one(where: tuple[str, int, int], entries: list[Tuned], site: Site, floor: float) -> Iterator[Placed]:
    dtype, n, batch = where
    chunks = {Layout.chunked(entry.case.chunk): entry for entry in entries if entry.case.chunk}
    at = {"target": site.target, "dtype": dtype, "arch": site.arch, "device": site.device}
    packed = {layout: entry.ns for layout, entry in chunks.items()}
    margins = {layout: entry.margin for layout, entry in chunks.items()}
    today = default_layout(n, batch=batch, **at)
    yield from _placed("layouts", where, packed, margins, today, site, chunks)
    arrays = {
        layout: packed_seconds(ns * batch / 1e9, n, dtype, batch, site.copy_bytes_per_second, floor) / batch * 1e9
        for layout, ns in packed.items()
    }
    direct = {Layout.canonical("row"): e for e in entries if (e.case.layout, e.case.order) == ("canonical", "row")}
    arrays |= {layout: entry.ns for layout, entry in direct.items()}
    margins |= {layout: entry.margin for layout, entry in direct.items()}
    yield from _placed("arrays", where, arrays, margins, array_layout(n, batch, **at), site, chunks | direct)


def _placed(
    section: str,
    where: tuple[str, int, int],
    times: Mapping[Layout, float],
    margins: Mapping[Layout, float],
    today: Layout,
    site: Site,
    entries: Mapping[Layout, Tuned],
) -> Iterator[Placed]:
    """Nothing, if today's layout was not measured, or no other one."""
    if today not in times or len(times) < 2:
        return
    dtype, n, batch = where
    fastest = min(times, key=lambda layout: times[layout])
    margin = max(margins[today], margins[fastest])
    best = fastest if times[today] > times[fastest] * (1 + margin) else today
    users = tuned_placement(section, n, batch, site.target, dtype, site.arch, site.device)
    yield Placed(
        section,
        dtype,
        n,
        batch,
        best,
        float(f"{times[best]:.{_DIGITS}g}"),
        kept=best == today and users is None,
        incumbent=today,
        incumbent_ns=float(f"{times[today]:.{_DIGITS}g}"),
        margin=margin,
        about=entries[best].about,
    )
