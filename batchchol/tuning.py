"""Measuring the schedules of the thread family, and the table of defaults that comes of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from batchchol.backends import Backend
from batchchol.batch import Batch
from batchchol.defaults import Choice
from batchchol.errors import BatchcholError, CompileError, ResidualError
from batchchol.timing import Buffers, rotating_buffers, sample_factor
from kernelgen import TARGETS, KernelSpec, Layout, Problem, ThreadSchedule
from kernelgen.spec import DEFAULT_THREADS, FULL_UNROLL_BUDGET, LOOKINGS, straight_line_operations

SIMD_TILE_SIZES = (2, 3, 4, 5, 6, 8)
GPU_TILE_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
# Straight-line code takes ever longer to compile: above this it is not among a CPU's candidates.
SIMD_FULL_UNROLL_MAX_N = 16
# All candidates are measured briefly, the best of them again and longer.
FIRST_SAMPLES, FINAL_SAMPLES = 5, 25
# A GPU's finalists have more variations, and there are some for each stride.
SIMD_FINALISTS, GPU_FINALISTS = 5, 2
# A schedule replaces one that serves the neighbouring orders only if it is this much faster.
MARGIN = 0.03


@dataclass(frozen=True)
class Point:
    """One measured schedule: `status` is "correct", or why there is no number.

    `chunk` is the batch's, `conditions` the device's state after the last call.
    """

    spec: KernelSpec
    chunk: int | None
    batch: int
    threads: int
    protocol: str
    status: str
    median_seconds: float = float("nan")
    spread: float = float("nan")
    ratio: float = float("nan")
    samples: int = 0
    floor_seconds: float = float("nan")
    compile_seconds: float = float("nan")
    code_bytes: int = 0
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    conditions: Mapping[str, str | int | float] = field(default_factory=dict)


def schedules(n: int, math: str, target: str) -> Iterator[ThreadSchedule]:
    """The candidates for order n; what `variations` says is asked of the best alone."""
    if TARGETS[target].gpu:
        yield from _gpu_schedules(n, math)
        return
    sizes = sorted({nb for nb in SIMD_TILE_SIZES if nb <= n} | ({n} if n <= 8 else set()))
    unrolls = ("tiles", "full") if n <= SIMD_FULL_UNROLL_MAX_N else ("tiles",)
    for nb, looking, unroll, staged in itertools.product(sizes, LOOKINGS, unrolls, (True, False)):
        yield ThreadSchedule(nb, looking, unroll, math, staged=staged)


def _gpu_schedules(n: int, math: str) -> Iterator[ThreadSchedule]:
    sizes = [nb for nb in GPU_TILE_SIZES if nb <= n]
    unrolls = ("tiles", "full") if straight_line_operations(n) <= FULL_UNROLL_BUDGET else ("tiles",)
    for nb, looking, unroll, stride in itertools.product(sizes, LOOKINGS, unrolls, (None, DEFAULT_THREADS)):
        yield ThreadSchedule(nb, looking, unroll, math, stride=stride)


def variations(spec: KernelSpec) -> list[KernelSpec]:
    """A good candidate with the choices that matter less: prefetching on a CPU, blocks and caches on a GPU."""
    if TARGETS[spec.target].gpu:
        choices = itertools.product((32, 64, 128), ("l1", "shared"))
        varied = [replace(spec.schedule, threads=threads, cache=cache) for threads, cache in choices]
    else:
        varied = [replace(spec.schedule, prefetch=prefetch) for prefetch in (True, False)]
    return [replace(spec, schedule=schedule) for schedule in varied]


def specs(n: int, dtype: str, math: str, target: str) -> list[KernelSpec]:
    """The candidates for order n as chunked kernels."""
    problem = Problem(n, dtype)
    return [KernelSpec(problem, "chunked", "col", schedule, target) for schedule in schedules(n, math, target)]


def measure(backend: Backend, candidates: Iterable[KernelSpec], batch: int, threads: int) -> list[Point]:
    """Measure the candidates of one order, then the best with their variations, then the winner in every protocol.

    What does not compile is recorded as such. Candidates may have been built before.
    """
    pool = list(candidates)
    buffers = rotating_buffers(backend, _data(backend, pool[0], batch))
    measured = partial(_measured, backend, buffers, threads)
    first = [measured(spec, FIRST_SAMPLES) for spec in pool]
    ranked = sorted((point for point in first if point.status == "correct"), key=lambda p: p.median_seconds)
    finalists = [varied for spec in _finalists(ranked) for varied in variations(spec)]
    backend.build(finalists)
    final = [measured(spec, FINAL_SAMPLES) for spec in finalists]
    winners = [best(final).spec] if finalists else []
    others = itertools.product(winners, backend.protocols[1:])
    return first + final + [measured(spec, FINAL_SAMPLES, other) for spec, other in others]


def _finalists(ranked: Sequence[Point]) -> list[KernelSpec]:
    """The best of the kernels for any chunk, and of those for one chunk alone."""
    finalists = []
    for stride in dict.fromkeys(point.spec.schedule.stride for point in ranked):
        rivals = [point.spec for point in ranked if point.spec.schedule.stride == stride]
        finalists += rivals[: GPU_FINALISTS if TARGETS[rivals[0].target].gpu else SIMD_FINALISTS]
    return finalists


def best(points: Iterable[Point]) -> Point:
    """The fastest correct point among those with the most samples in the protocol of the first point.

    Raises
    ------
    BatchcholError
        If there is none.
    """
    known = list(points)
    correct = [p for p in known if p.status == "correct" and p.protocol == known[0].protocol]
    if not correct:
        raise BatchcholError("no candidate gave a correct result: their statuses say why")
    most = max(point.samples for point in correct)
    return min((point for point in correct if point.samples == most), key=lambda point: point.median_seconds)


def table(points: Sequence[Point]) -> list[Choice]:
    """The table of defaults that measured points of one batch and math make.

    Kernels for any chunk come first, then those for one chunk alone, for they are no defaults of each other.
    """
    strides = sorted({point.spec.schedule.stride for point in points}, key=lambda stride: stride or 0)
    return [
        choice for stride in strides for choice in _choices([p for p in points if p.spec.schedule.stride == stride])
    ]


def _choices(points: Sequence[Point]) -> list[Choice]:
    """Winners by order; one within the margin of its predecessor's schedule keeps that."""
    choices: list[Choice] = []
    kept: ThreadSchedule | None = None
    for n in sorted({point.spec.problem.n for point in points}):
        measured_here = [point for point in points if point.spec.problem.n == n]
        winner = best(measured_here)
        schedule = winner.spec.schedule
        if kept is not None and kept != schedule:
            rivals = [p.median_seconds for p in measured_here if p.status == "correct" and p.spec.schedule == kept]
            if rivals and min(rivals) <= winner.median_seconds * (1 + MARGIN):
                schedule = kept
        kept = schedule
        choices.append(Choice.of(n, schedule))
    return choices


def _measured(
    backend: Backend, buffers: Buffers, threads: int, spec: KernelSpec, samples: int, protocol: str | None = None
) -> Point:
    """One point: a kernel that does not compile or computes something else has a status in place of numbers."""
    chosen, data = protocol or backend.protocols[0], buffers[0][0]
    try:
        stats = backend.kernel(spec).stats
        sample = sample_factor(
            backend, spec, data, samples=samples, threads=threads, protocol=chosen, buffers=buffers
        )
    except CompileError as error:
        return Point(spec, data.layout.chunk, data.batch, threads, chosen, error.status)
    except ResidualError:
        return Point(spec, data.layout.chunk, data.batch, threads, chosen, "wrong")
    return Point(
        spec=spec,
        chunk=data.layout.chunk,
        batch=data.batch,
        threads=threads,
        protocol=chosen,
        status="correct",
        median_seconds=sample.median,
        spread=sample.spread,
        ratio=sample.ratio,
        samples=samples,
        floor_seconds=sample.floor,
        compile_seconds=stats.compile_seconds,
        code_bytes=stats.code_bytes,
        registers=stats.registers,
        spill_bytes=stats.spill_bytes,
        shared_bytes=stats.shared_bytes,
        conditions=sample.conditions.get("after", {}),
    )


def _data(backend: Backend, spec: KernelSpec, batch: int) -> Batch:
    gpu = TARGETS[spec.target].gpu
    layout = Layout.chunked(DEFAULT_THREADS if gpu else spec.lanes)
    data = backend.empty(spec.problem.n, batch, layout, spec.problem.dtype)
    backend.fill(data, "diagonally_dominant")
    return data
