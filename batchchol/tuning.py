"""Measuring the schedules of the thread family, and the table of defaults that comes of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from batchchol import datasets
from batchchol.backends import Backend
from batchchol.batch import Batch
from batchchol.defaults import Choice
from batchchol.errors import CompileError, ResidualError
from batchchol.timing import sample_factor
from kernelgen import KernelSpec, Layout, Problem, SpecError, ThreadSchedule
from kernelgen.spec import LOOKINGS

TILE_SIZES = (2, 3, 4, 5, 6, 8)
# Straight-line code takes ever longer to compile: above this it is not among the candidates.
FULL_UNROLL_MAX_N = 16
# All candidates are measured briefly, the best of them again and longer.
FIRST_SAMPLES, FINAL_SAMPLES, FINALISTS = 5, 25, 5
# A schedule replaces one that serves the neighbouring orders only if it is this much faster.
MARGIN = 0.03


@dataclass(frozen=True)
class Point:
    """One measured schedule: `status` is "correct", or why there is no number."""

    spec: KernelSpec
    batch: int
    threads: int
    status: str
    median_seconds: float
    spread: float
    ratio: float
    samples: int
    compile_seconds: float
    code_bytes: int


def schedules(n: int, math: str) -> Iterator[ThreadSchedule]:
    """The candidates for order n, all with prefetching; whether that pays is asked of the best."""
    sizes = sorted({nb for nb in TILE_SIZES if nb <= n} | ({n} if n <= 8 else set()))
    unrolls = ("tiles", "full") if n <= FULL_UNROLL_MAX_N else ("tiles",)
    for nb, looking, unroll, staged in itertools.product(sizes, LOOKINGS, unrolls, (True, False)):
        yield ThreadSchedule(nb, looking, unroll, math, staged=staged)


def specs(n: int, dtype: str, math: str, target: str) -> list[KernelSpec]:
    """The candidates for order n as chunked kernels."""
    problem = Problem(n, dtype)
    return [KernelSpec(problem, "chunked", "col", schedule, target) for schedule in schedules(n, math)]


def compile_all(backend: Backend, candidates: Sequence[KernelSpec], jobs: int) -> None:
    """Compile candidates in parallel; what fails is found again, and recorded, when it is measured."""

    def attempt(spec: KernelSpec) -> None:
        try:
            backend.kernel(spec)
        except (CompileError, SpecError):
            return

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(attempt, candidates))


def measure(backend: Backend, candidates: Iterable[KernelSpec], batch: int, threads: int) -> list[Point]:
    """Measure the candidates of one order, the best ones twice; the points of the last round come last."""
    pool = list(candidates)
    data = _data(pool[0], batch)
    first = [_point(backend, spec, data, threads, FIRST_SAMPLES) for spec in pool]
    ranked = sorted((point for point in first if point.status == "correct"), key=lambda p: p.median_seconds)
    finalists = [spec for point in ranked[:FINALISTS] for spec in _prefetching_or_not(point.spec)]
    return first + [_point(backend, spec, data, threads, FINAL_SAMPLES) for spec in finalists]


def best(points: Iterable[Point]) -> Point:
    """The fastest correct point among those with the most samples."""
    correct = [point for point in points if point.status == "correct"]
    most = max(point.samples for point in correct)
    return min((point for point in correct if point.samples == most), key=lambda point: point.median_seconds)


def choices(winners: Sequence[Point], points: Sequence[Point]) -> list[Choice]:
    """The table of defaults: winners by order; one within the margin of its predecessor's schedule keeps that."""
    table: list[Choice] = []
    kept: ThreadSchedule | None = None
    for winner in sorted(winners, key=lambda point: point.spec.problem.n):
        schedule, n = winner.spec.schedule, winner.spec.problem.n
        if kept is not None and kept != schedule:
            rivals = [p.median_seconds for p in points if p.spec.problem.n == n and p.spec.schedule == kept]
            if rivals and min(rivals) <= winner.median_seconds * (1 + MARGIN):
                schedule = kept
        kept = schedule
        table.append(Choice(n, schedule.nb, schedule.looking, schedule.unroll, schedule.prefetch, schedule.staged))
    return table


def _prefetching_or_not(spec: KernelSpec) -> list[KernelSpec]:
    return [replace(spec, schedule=replace(spec.schedule, prefetch=prefetch)) for prefetch in (True, False)]


def _data(spec: KernelSpec, batch: int) -> Batch:
    data = Batch.empty(spec.problem.n, batch, Layout.chunked(spec.lanes), spec.problem.dtype)
    datasets.fill(data, "diagonally_dominant")
    return data


def _point(backend: Backend, spec: KernelSpec, data: Batch, threads: int, samples: int) -> Point:
    empty = partial(Point, spec, data.batch, threads, median_seconds=float("nan"), spread=float("nan"))
    try:
        stats = backend.kernel(spec).stats
        sample = sample_factor(backend, spec, data, samples=samples, threads=threads)
    except CompileError as error:
        return empty(status=error.status, ratio=float("nan"), samples=0, compile_seconds=float("nan"), code_bytes=0)
    except ResidualError:
        return empty(status="wrong", ratio=float("nan"), samples=0, compile_seconds=float("nan"), code_bytes=0)
    return Point(
        spec,
        data.batch,
        threads,
        "correct",
        sample.median,
        sample.spread,
        sample.ratio,
        samples,
        stats.compile_seconds,
        stats.code_bytes,
    )
