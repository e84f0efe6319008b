"""A point of the grid made ready to be measured: data, kernel and a first check, once per process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from . import grid, library
from .grid import SIMD, Point
from .question import Question as _Question
from .question import skipping

TIMED_RECIPE = "diagonally_dominant"
# Every spec is checked on these as well, in a batch whose last chunk is not full.
CHECKED_RECIPE = "wishart"
CHECKED_BATCH = 333
SAMPLES = 20


@dataclass(frozen=True)
class Case:
    """A backend, a spec and a batch to measure them on."""

    point: Point
    backend: library.Backend
    spec: library.KernelSpec
    layout: library.Layout
    batch: library.Batch

    def seconds_per_matrix(self) -> list[float]:
        """Samples of the backend's clock, divided by the batch: out of place, cold, the result checked."""
        with skipping():
            sample = library.sample_factor(
                self.backend, self.spec, self.batch, samples=SAMPLES, threads=self.point.threads, cold=True
            )
        return [seconds / self.point.batch for seconds in sample.seconds]

    def largest_ratio(self, recipe: str) -> float:
        """The largest residual ratio over a small ragged batch of `recipe`; an error if out of bounds."""
        small = library.Batch.empty(self.point.n, CHECKED_BATCH, self.layout, self.point.dtype)
        library.fill(small, recipe)
        return library.sample_factor(self.backend, self.spec, small, samples=1, cold=False).ratio


@cache
def case(point: Point, defaults: bool = False) -> Case:
    """The case of `point`, its spec checked; if asked, with the library's own schedule and layout.

    Raises
    ------
    SkipNotImplemented
        If it cannot be built, or not on this machine; says why.
    batchchol.errors.ResidualError
        If the kernel is wrong.
    """
    with skipping():
        backend = library.get_backend(point.backend)
        if point.threads > backend.threads:
            raise SkipNotImplemented(f"threads={point.threads}, and backend {backend.name} has {backend.threads}")
        layout = library.default_layout(point.dtype) if defaults else _layout(point, backend.lanes(point.dtype))
        spec = (_default_spec if defaults else _spec)(point, layout, backend.target)
        if reason := backend.unsupported(spec, layout):
            raise SkipNotImplemented(reason)
        batch = library.Batch.empty(point.n, point.batch, layout, point.dtype)
        library.fill(batch, TIMED_RECIPE)
        ready = Case(point, backend, spec, layout, batch)
        ready.largest_ratio(CHECKED_RECIPE)
        return ready


# The underscore keeps asv, which takes every other class it finds for a benchmark, from measuring the base itself.
class _KernelQuestion(_Question):
    """Base of the questions that time one kernel by the backend's clock."""

    def setup(self, *values: Any) -> None:
        self.case = case(grid.Point(**self.selected(*values)))

    def device_factor(self, *_: Any) -> list[float]:
        return self.case.seconds_per_matrix()


def _layout(point: Point, lanes: int) -> library.Layout:
    chunk = lanes if point.chunk == SIMD else point.chunk
    return library.Layout(point.layout, chunk, "row" if point.layout == "canonical" else "col")


def _spec(point: Point, layout: library.Layout, target: str) -> library.KernelSpec:
    schedule = library.ThreadSchedule(
        nb=point.nb,
        looking=point.looking,
        unroll=point.unroll,
        math=point.math,
        prefetch=point.prefetch,
        staged=point.staged,
    )
    problem = library.Problem(point.n, point.dtype)
    return library.KernelSpec(problem, layout.kind, layout.order, schedule, target)


def _default_spec(point: Point, layout: library.Layout, target: str) -> library.KernelSpec:
    return library.default_spec(
        point.n, target=target, dtype=point.dtype, layout=layout.kind, order=layout.order, math=point.math
    )
