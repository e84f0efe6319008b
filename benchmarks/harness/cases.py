"""A point of the grid made ready to be measured: data, kernel and a first check, once per process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from hashlib import sha256
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from . import grid, library
from .benchmark import Question as _Question
from .benchmark import skipping
from .device import SAMPLES, Taken
from .grid import Point

TIMED_RECIPE = "diagonally_dominant"
# Every spec is checked on these as well, in a batch whose last chunk is not full.
CHECKED_RECIPE = "wishart"
CHECKED_BATCH = 333
# What the largest batch and its result may take of free memory: a host has others who need some.
_USABLE = {"cpu": 1 / 2, "cuda": 15 / 16}
# The info of a matrix, and its residual ratio.
_STATUS_BYTES = 4 + 8


@dataclass(frozen=True)
class Plan:
    """What a point is about: a backend, a spec and the layout of its data. Nothing is compiled yet."""

    point: Point
    backend: library.Backend
    spec: library.KernelSpec
    layout: library.Layout

    def filled(self, batch: int, recipe: str) -> library.Batch:
        """`batch` matrices of a data set, where the backend's kernels can use them."""
        made = library.empty(self.backend, self.point.n, batch, self.layout, self.point.dtype)
        library.fill(self.backend, made, recipe)
        return made

    def largest_ratio(self, recipe: str) -> float:
        """The largest residual ratio over a small ragged batch of `recipe`; an error if out of bounds."""
        small = self.filled(CHECKED_BATCH, recipe)
        return library.sample_factor(self.backend, self.spec, small, samples=1, cold=False, protocol="single").ratio


@dataclass(frozen=True)
class Case:
    """A plan whose kernel has been checked, and the batch to measure it on."""

    plan: Plan
    batch: library.Batch

    def samples(self) -> Taken:
        """Seconds per matrix by the backend's clock: out of place, cold, the result checked."""
        plan, point = self.plan, self.plan.point
        with skipping():
            sample = library.sample_factor(
                plan.backend,
                plan.spec,
                self.batch,
                samples=SAMPLES,
                threads=point.threads,
                cold=True,
                protocol=point.protocol,
            )
        return Taken([seconds / point.batch for seconds in sample.seconds], about(plan, sample))

    def call(self) -> Callable[[], Any]:
        """A call that queues the factorization, out of place."""
        return partial(library.factor, self.batch, self.plan.spec, out=self.batch.copy())


def planned(point: Point, backend: library.Backend, defaults: bool = False) -> Plan:
    """The plan of `point` on a backend; with `defaults`, the library's own schedule and layout.

    Raises
    ------
    SkipNotImplemented
        If it cannot be built, or not on this machine; says why.
    """
    with skipping():
        if defaults:
            layout = library.default_layout(backend, point.n, point.dtype, point.batch)
        else:
            layout = layout_of(point, backend)
        spec = (_default_spec if defaults or point.nb is None else _spec)(point, layout, backend)
        if point.pdl is not None:
            spec = library.launched(spec, backend, pdl=point.pdl)
    return supported(Plan(point, backend, spec, layout))


# Of a point and a backend; an older commit may lack the latter's type.
Planner = Callable[[Point, Any], Plan]


def supported(made: Plan) -> Plan:
    """The plan, if its backend can run it.

    Raises
    ------
    SkipNotImplemented
        If it cannot; says why.
    """
    if reason := made.backend.unsupported(made.spec, made.layout):
        raise SkipNotImplemented(reason)
    return made


@cache
def plan(point: Point, planner: Planner = planned) -> Plan:
    """The plan of a point, on its backend; see `planned`."""
    return planner(point, backend_of(point))


@cache
def case(point: Point, planner: Planner = planned) -> Case:
    """The case of a point; see `checked`."""
    return checked(plan(point, planner))


def checked(chosen: Plan) -> Case:
    """The case of a plan, its spec checked.

    Raises
    ------
    SkipNotImplemented
        If the batch does not fit.
    batchchol.errors.ResidualError
        If the kernel is wrong.
    """
    with skipping():
        batch = chosen.filled(chosen.point.batch, TIMED_RECIPE)
        chosen.largest_ratio(CHECKED_RECIPE)
    return Case(chosen, batch)


def backend_of(point: Point) -> library.Backend:
    """The backend of a point, if it has what the point asks of it and its batch is not too large to be measured."""
    backend = present(point)
    if (needed := point.matrix_bytes) > grid.MATRIX_BYTES:
        raise SkipNotImplemented(
            f"the matrices take {needed:,} bytes, and at most {grid.MATRIX_BYTES:,} are measured"
        )
    return backend


def present(point: Point) -> library.Backend:
    """The backend of a point, if it has what the point asks of it."""
    with skipping():
        backend = library.get_backend(point.backend)
    protocols = library.protocols(backend)
    threads = 1 if point.backend == "cuda" else backend.threads
    if point.threads > threads:
        raise SkipNotImplemented(f"threads={point.threads}, and backend {backend.name} has {threads}")
    if point.protocol not in (None, *protocols):
        raise SkipNotImplemented(
            f"protocol={point.protocol!r}, and backend {backend.name} has {', '.join(protocols)}"
        )
    return backend


def most_matrices(backend: library.Backend, point: Point) -> int:
    """How many matrices of a point's order and dtype can be factored out of place in free memory, in thousands.

    Raises
    ------
    SkipNotImplemented
        If this commit does not say what is free.
    """
    if not hasattr(backend, "free_bytes"):
        raise SkipNotImplemented("the backend of this commit does not say how much memory is free")
    usable = int(backend.free_bytes() * _USABLE[point.backend])
    return usable // (2 * replace(point, batch=1).matrix_bytes + _STATUS_BYTES) // 1_000 * 1_000


def layout_of(point: Point, backend: library.Backend) -> library.Layout:
    """The layout that a point names; an error if there is no such layout."""
    chunk = point.chunk
    if point.layout == "chunked" and chunk is None:
        chunk = backend.lanes(point.dtype)
    return library.Layout(point.layout, chunk, "row" if point.layout == "canonical" else "col")


# The underscore keeps asv, which takes every other class it finds for a benchmark, from measuring the base itself.
class _KernelQuestion(_Question):
    """Base of the questions that time one kernel by the backend's clock."""

    def prepare(self) -> None:
        self.build_ahead()
        self.case = case(self.point, self.planned)

    @classmethod
    def planned(cls, point: Point, backend: library.Backend) -> Plan:
        """What is measured at a point: the library's own schedule and layout, unless the layout is a parameter."""
        return planned(point, backend, defaults="layout" not in cls.param_names)

    def device_factor(self, *_: Any) -> Taken:
        return self.case.samples()

    def build_ahead(self) -> None:
        """At the first of this question's points, compile the kernels of all of them, in parallel."""
        if self.named == next(self.points(self.point.backend), None):
            plans = list(self._plans(self.point.backend))
            for first in plans[:1]:
                library.build(first.backend, list(dict.fromkeys(each.spec for each in plans)))

    def _plans(self, backend: str) -> Iterator[Plan]:
        for named in self.points(backend):
            with suppress(SkipNotImplemented):
                yield plan(grid.point_of(named), self.planned)


def _spec(point: Point, layout: library.Layout, backend: library.Backend) -> library.KernelSpec:
    family = library.schedule_type(point.family)
    has = {field.name for field in fields(family)}
    choices: dict[str, Any] = {
        "prefetch": point.prefetch,
        "staged": point.staged,
        "threads": point.block,
        "blocks": point.blocks,
        "cache": point.cache,
        "stride": point.stride,
    }
    every = {"nb": point.nb, "looking": point.looking, "unroll": point.unroll, "math": point.math}
    # An older commit has fewer of these, and does not take None for its default.
    given = {name: chosen for name, chosen in choices.items() if chosen is not None}
    for name, chosen in given.items():
        if name not in has:
            raise library.SpecError(f"{name}={chosen} cannot be built: in this commit the family has no such choice")
    schedule = family(**{name: chosen for name, chosen in every.items() if name in has}, **given)
    # In older commits the math is the schedule's.
    math: dict[str, Any] = {} if "math" in has else {"math": point.math}
    problem = library.Problem(point.n, point.dtype, **math)
    return library.KernelSpec(problem, layout.kind, layout.order, schedule, backend.target)


def _default_spec(point: Point, layout: library.Layout, backend: library.Backend) -> library.KernelSpec:
    asked: dict[str, Any] = {"dtype": point.dtype, "math": point.math, "batch": point.batch}
    if point.family is not None:
        return library.family_spec(point.n, backend, layout, family=point.family, **asked)
    return library.default_spec(point.n, backend, layout, **asked)


def about(measured: Plan, sample: library.Sample) -> dict[str, Any]:
    """What the record of a measurement says besides its samples."""
    source = library.generate_source(measured.spec)
    return {
        "spec": measured.spec.name,
        "layout": str(measured.layout),
        "source_sha256": sha256(source.text.encode()).hexdigest(),
        "flags": list(source.flags),
        "compiler": measured.backend.kernel(measured.spec).stats.compiler,
        "device": measured.backend.device(),
        "ratio": sample.ratio,
        **library.circumstances(sample),
    }
