"""From a search space to the points of a machine, one by one; those that cannot be built are counted by reason."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from batchchol.batches.sizes import matrices
from batchchol.measure.point import Point
from batchchol.tune import candidates
from batchchol.tune.choosing.winners import Best, value_of
from batchchol.tune.space import ALL_FAMILIES, CHUNK, DEFAULT, Space, SpaceError, Table
from kernelgen import FAMILIES, TARGETS, KernelSpec, Problem, Schedule, SpecError, ThreadSchedule
from kernelgen.schedules.axes import axes_of
from kernelgen.targets import ELEMENT_BYTES

# The share of the free memory for the input and output of a call; the check and the library need the rest.
_SHARE = 0.9
_SEED = 2017


@dataclass(frozen=True)
class Machine:
    """What decides which points there are; `protocol` is the backend's default, `lanes` its smallest good chunk."""

    backend: str
    target: str
    protocol: str
    lanes: Mapping[str, int]
    free_bytes: int | None = None
    threads: int = 1

    @classmethod
    def of(cls, facts: Mapping[str, Any], threads: int = 1) -> Machine:
        """The machine that `Bench.facts` describes."""
        named = {name: facts[name] for name in ("backend", "target", "protocol", "lanes", "free_bytes")}
        return cls(**named, threads=threads)

    @classmethod
    def cuda(cls) -> Machine:
        """A GPU that is not here, to compile for."""
        return cls("cuda", "cuda", "queued", dict.fromkeys(ELEMENT_BYTES, 32))


@dataclass(frozen=True)
class Expansion:
    """The points of a space on a machine, in the order in which they are measured.

    `unsupported` counts the combinations that are no points there, by reason.
    """

    points: list[Point] = field(default_factory=list)
    unsupported: Counter[str] = field(default_factory=Counter)


def expand(space: Space, machine: Machine, **narrow: Iterable[Any]) -> Expansion:
    """The points of a space on a machine.

    Points of the same data follow each other, and those of the same order: what was made for one serves the next.
    Orders come in a random sequence that is always the same, so that a device that gets slower while it works does
    not make large matrices look slow.

    Parameters
    ----------
    narrow : iterables
        Values that are kept, of n, batch, dtype, math, family or layout.

    Raises
    ------
    SpaceError
        If no point is left.
    """
    kept = {name: set(values) for name, values in narrow.items() if values is not None}
    expansion = Expansion()
    seen = set()
    tables = tuple(_narrowed(table, kept) for table in space.tables)
    for found in points(replace(space, tables=tables), machine):
        if isinstance(found, str):
            expansion.unsupported[found] += 1
        elif found.key not in seen and all(value_of(found, name) in values for name, values in kept.items()):
            seen.add(found.key)
            expansion.points.append(found)
    if not expansion.points:
        said = "".join(f", {name} of {', '.join(map(str, sorted(values)))}" for name, values in kept.items())
        said += _other_backends(space, machine)
        raise SpaceError(f"space {space.name!r} has no points on backend {machine.backend!r}{said}")
    orders = sorted({point.spec.problem.n for point in expansion.points})
    random.Random(_SEED).shuffle(orders)
    place = {n: index for index, n in enumerate(orders)}
    expansion.points.sort(
        key=lambda point: (
            place[point.spec.problem.n],
            point.spec.problem.dtype,
            point.spec.problem.op,
            point.batch,
            str(point.layout),
            point.protocol,
        )
    )
    return expansion


def _other_backends(space: Space, machine: Machine) -> str:
    """Which backends the points are for, if they are only for others."""
    backends = list(dict.fromkeys(backend for table in space.tables for backend in table.backends))
    if machine.backend in backends:
        return ""
    return f": its points are for {' and '.join(map(repr, backends))}, give --backend {backends[0]}"


def _narrowed(table: Table | Best, kept: Mapping[str, set[Any]]) -> Table | Best:
    """The table with the wanted values of its axes alone, as far as these are no words for other values."""
    plain = {name: values for name, values in kept.items() if name in ("n", "dtype", "math", "layout")}
    if isinstance(table, Best):
        return table.narrowed(lambda point: all(value_of(point, name) in values for name, values in plain.items()))
    axes = {
        name: tuple(value for value in values if name not in plain or value in plain[name])
        for name, values in table.axes.items()
    }
    return replace(table, axes=axes)


def points(space: Space, machine: Machine) -> Iterator[Point | str]:
    """Every combination of a space, lazily: a point, or why it is none."""
    for table in space.tables:
        if machine.backend not in table.backends:
            continue
        if isinstance(table, Best):
            yield from _best(table, machine)
        else:
            yield from (_candidates if table.candidates else _kernels)(table, machine)


def _kernels(table: Table, machine: Machine) -> Iterator[Point | str]:
    axes = {name: values for name, values in table.axes.items() if name != "backend"}
    if "chunked" not in axes["layout"]:
        axes["chunk"] = (DEFAULT,)
    for values in itertools.product(*axes.values()):
        choice = dict(zip(axes, values, strict=True))
        if choice["layout"] != "chunked" and choice["chunk"] != axes["chunk"][0]:
            # It has no chunk: one value stands for all.
            continue
        try:
            yield _point(table.families[0], choice, machine)
        except SpecError as error:
            yield _reason(str(error))


def _point(family: str, choice: Mapping[str, Any], machine: Machine) -> Point | str:
    dtype, layout = choice["dtype"], choice["layout"]
    lanes = machine.lanes[dtype]
    chunk = None if layout != "chunked" else lanes if choice["chunk"] == DEFAULT else choice["chunk"]
    schedule = _schedule(family, choice, layout, chunk)
    problem = Problem(choice["n"], dtype, choice["uplo"], choice["op"], choice["math"])
    spec = KernelSpec(problem, layout, choice["order"], schedule, machine.target)
    if chunk is not None and chunk % spec.lanes:
        return f"chunk: no multiple of the {spec.lanes} lanes of {machine.target}"
    return _sized(spec, chunk, choice, machine)


def _schedule(family: str, choice: Mapping[str, Any], layout: str, chunk: int | None) -> Schedule:
    """The family's schedule with these choices, of which some are words."""
    kind = FAMILIES[family]
    chosen = {name: choice[name] for name in axes_of(kind) if choice.get(name, DEFAULT) != DEFAULT}
    for name, value in chosen.items():
        if value == CHUNK:
            if chunk is None:
                raise SpecError(f"{name}={CHUNK!r} cannot be built: layout {layout!r} has no chunk")
            chosen[name] = chunk
    try:
        return kind(**chosen)
    except TypeError as error:
        raise SpecError(f"family {family!r}: {error}") from error


def _best(table: Best, machine: Machine) -> Iterator[Point | str]:
    for point in table.winners(machine.target):
        spec, old = point.spec, asdict(point.spec.schedule)
        # Older files do not name it: they have only the default one.
        chunk = point.chunk or candidates.layout_of(spec).chunk
        changes = {name: values for name, values in table.changes.items() if name in old}
        rest = {"batch": point.batch, "protocol": DEFAULT, "any_block": False}
        for values in itertools.product(*changes.values()):
            choice = old | dict(zip(changes, values, strict=True))
            try:
                changed = replace(spec, schedule=_schedule(spec.family, choice, spec.layout, chunk))
            except SpecError as error:
                yield _reason(str(error))
            else:
                yield _sized(changed, chunk, rest, machine)


def _candidates(table: Table, machine: Machine) -> Iterator[Point | str]:
    known = candidates.families_of(machine.target)
    chosen = known if ALL_FAMILIES in table.families else table.families
    families = [family for family in chosen if family in known]
    axes = [table.axes[name] for name in ("n", "dtype", "math", "layout", "op")]
    rest = {name: table.axes[name] for name in ("batch", "protocol", "any_block")}
    for n, dtype, math, layout, op in itertools.product(*axes):
        specs = candidates.specs(n, dtype, math, machine.target, families, layout, op)
        if True in table.axes["variations"]:
            specs = list(dict.fromkeys(varied for spec in specs for varied in candidates.variations(spec)))
        for spec, *values in itertools.product(specs, *rest.values()):
            yield _sized(spec, candidates.layout_of(spec).chunk, dict(zip(rest, values, strict=True)), machine)


def _sized(spec: KernelSpec, chunk: int | None, choice: Mapping[str, Any], machine: Machine) -> Point | str:
    batch = choice["batch"]
    if isinstance(batch, str):
        batch = matrices(batch, spec.problem.n, spec.problem.dtype)
    protocol = machine.protocol if choice["protocol"] == DEFAULT else choice["protocol"]
    schedule = spec.schedule
    shareable = isinstance(schedule, ThreadSchedule) and TARGETS[spec.target].gpu and schedule.blocks is None
    point = Point(spec, batch, chunk, machine.threads, protocol, choice["any_block"] and shareable)
    if machine.free_bytes is not None and 2 * point.nbytes > _SHARE * machine.free_bytes:
        return "batch: input and output do not fit in the free memory"
    return point


def _reason(message: str) -> str:
    """Which choice was refused: messages have the values too, and are all different."""
    return message.split("=", 1)[0] + ": " + re.sub(r"[\d,]*\d", "#", message.split(": ", 1)[-1])
