"""Candidates for one order and batch, the most promising first: a search that is cut short has seen those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from math import log2
from typing import TypeVar

from batchchol.defaults.fitting import fitted
from batchchol.defaults.lookup import array_layout, default_layout, user_table
from batchchol.defaults.request import Request
from batchchol.defaults.runnable import has_pdl
from batchchol.defaults.shipped import source_of
from batchchol.defaults.tables import Case
from batchchol.measure.point import Point
from batchchol.tune import candidates as enumerated
from batchchol.tune.choosing.contest import Site
from batchchol.tune.choosing.winners import grouped
from kernelgen import Layout, Schedule
from kernelgen.schedules import DEFAULT_THREADS, in_math

# How far an entry of a table is from what is asked for: that of another order counts by its ratio, one of a batch
# that is four times as large half as much as one of twice the order.
_BATCH_WEIGHT, _MATH_WEIGHT, _DTYPE_WEIGHT, _CHUNK_WEIGHT = 0.25, 0.5, 1.0, 0.25
_NEIGHBOURS = 24

_T = TypeVar("_T")


def current_layouts(wanted: Request, kinds: Sequence[str]) -> list[Layout]:
    """The layouts now in use, of these kinds: those of arrays and of batches."""
    n, math, at = wanted.problem.n, wanted.problem.math, wanted.where
    chunked = [default_layout(n, batch=wanted.batch, math=each, **at) for each in (None, math)]
    chunked.append(array_layout(n, wanted.size, math=math, **at))
    layouts = [Layout.canonical("row"), *chunked, Layout.interleaved()]
    return [layout for layout in dict.fromkeys(layouts) if layout.kind in kinds]


def candidates(wanted: Request, kinds: Sequence[str], families: Sequence[str], site: Site) -> list[Point]:
    """Everything worth trying, the kinds of layouts in turn.

    First what tables name for orders, batches and chunks nearby, the nearest first; then the candidates of each
    family in turn, of tile sizes near those of the neighbours first.
    """
    queues = [_of_kind(wanted, kind, families, site) for kind in kinds]
    return _unique(_in_turns(queues))


def _of_kind(wanted: Request, kind: str, families: Sequence[str], site: Site) -> list[Point]:
    near = list(_neighbours(wanted, kind, families, site))[:_NEIGHBOURS]
    problem = wanted.problem
    known = enumerated.specs(problem.n, problem.dtype, problem.math, site.target, families, kind, problem.op)
    by_family = [[spec for spec in known if spec.family == family] for family in families]
    ranked = [sorted(specs, key=lambda spec: _unlike_neighbours(spec.schedule, near)) for specs in by_family]
    chunk = _usual_chunk(wanted, kind)
    others = (site.point(spec, spec.schedule.stride or chunk, wanted.size) for spec in _in_turns(ranked))
    return _unique([*near, *others])


def _neighbours(wanted: Request, kind: str, families: Sequence[str], site: Site) -> Iterator[Point]:
    """What tables name, nearest first."""
    problem, shipped = wanted.problem, source_of(site.target, site.arch).table
    named = [
        (case, entry.n, entry.batch, entry.schedule) for case, entries in shipped.cases.items() for entry in entries
    ]
    own = user_table(site.device, site.target, site.arch).entries
    named += [(entry.case, entry.n, entry.batch, entry.schedule) for entry in own]
    named = [each for each in named if each[0].op == problem.op]
    usual = _usual_chunk(wanted, kind)
    # Schedules on chunks serve where a layout has no entries of its own.
    kinds = {kind} if any(case.layout == kind for case, *_ in named) else {"chunked"}

    def distance(each: tuple[Case, int, int | None, Schedule]) -> float:
        case, n, batch, _ = each
        away = abs(log2(n / problem.n)) + _BATCH_WEIGHT * abs(log2((batch or wanted.size) / wanted.size))
        away += _MATH_WEIGHT * (case.math != problem.math) + _DTYPE_WEIGHT * (case.dtype != problem.dtype)
        return away + _CHUNK_WEIGHT * abs(log2((case.chunk or usual or 1) / (usual or 1)))

    for case, _, _, schedule in sorted(named, key=distance):
        if case.layout not in kinds or schedule.family not in families:
            continue
        chunk = (case.chunk or usual) if kind == "chunked" else None
        layout = Layout(kind, chunk, "row" if kind == "canonical" else "col")
        adapted = in_math(schedule, case.math, problem.math)
        spec = fitted(wanted.on(layout).plain, adapted, chunk)
        if spec is not None and (chunk is None or site.gpu or chunk % spec.lanes == 0):
            yield site.point(spec, chunk, wanted.size)


def _usual_chunk(wanted: Request, kind: str) -> int | None:
    if kind != "chunked":
        return None
    return default_layout(wanted.problem.n, batch=wanted.batch, **wanted.where).chunk or DEFAULT_THREADS


def _unlike_neighbours(schedule: Schedule, near: Iterable[Point]) -> int:
    """How far a tile size is from those of the same family nearby; those without one are all alike."""
    nb = getattr(schedule, "nb", 0)
    sizes = [getattr(each.spec.schedule, "nb", 0) for each in near if each.spec.family == schedule.family]
    return min((abs(nb - size) for size in sizes), default=0)


def apart(found: Iterable[Point]) -> list[Point]:
    """The first of those that differ in nothing but `pdl`."""

    def late(point: Point) -> Point:
        return replace(point, spec=replace(point.spec, schedule=replace(point.spec.schedule, pdl=None)))

    return [first for first, *_ in grouped(found, late).values()]


def variations(best: Iterable[Point], site: Site) -> list[Point]:
    """Good candidates with the choices that matter less, in turn; `pdl` only where it is another kernel."""
    pdl = site.gpu and has_pdl(site.arch)
    queues = [[replace(each, spec=spec) for spec in enumerated.variations(each.spec, pdl=pdl)] for each in best]
    return _unique(_in_turns(queues))


def _in_turns(queues: Iterable[Sequence[_T]]) -> Iterator[_T]:
    return (each for each in chain.from_iterable(zip_longest(*queues)) if each is not None)


def _unique(found: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(found))
