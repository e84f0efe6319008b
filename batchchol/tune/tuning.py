"""Measuring the schedules of every family; what is chosen from the points is `batchchol.tune.make_tables`'s."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from batchchol.backends import Backend
from batchchol.batches.batch import Batch
from batchchol.errors import BatchcholError, CompileError, ResidualError
from batchchol.measure.timing import Buffers, rotating_buffers, sample_factor
from batchchol.tune.candidates import chunk_of, layout_of, variations
from kernelgen import (
    TARGETS,
    KernelSpec,
    Layout,
)

# All candidates are measured briefly, the best of them again and longer.
FIRST_SAMPLES, FINAL_SAMPLES = 5, 25
# A GPU's finalists have more variations, and there are some for each stride.
SIMD_FINALISTS, GPU_FINALISTS = 5, 2
# A schedule replaces one that serves the neighbouring orders only if it is this much faster.
PERIOD = " to "
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


@dataclass(frozen=True)
class Points:
    """The points of a file, and what they were measured on.

    `date` is a `period` of days; `copy_bytes_per_second` is None if the file does not say it.
    """

    points: tuple[Point, ...]
    machine: str
    toolkit: str
    date: str
    copy_bytes_per_second: float | None


def period(days: Iterable[str]) -> str:
    """Days, such as "2026-11-21", in short: the one that they are, or the first and the last."""
    ordered = sorted(days)
    return PERIOD.join(dict.fromkeys((ordered[0], ordered[-1])))


class _Bench:
    """Measures kernels, each on a batch in its own layout, and keeps the data of one layout at a time."""

    def __init__(self, backend: Backend, batch: int, threads: int) -> None:
        self._backend, self._batch, self._threads = backend, batch, threads
        self._layout: Layout | None = None
        self._buffers: Buffers = []

    def measure(self, spec: KernelSpec, samples: int, protocol: str | None = None) -> Point:
        """One point of a kernel."""
        if layout_of(spec) != self._layout:
            self._layout, self._buffers = layout_of(spec), []
            self._buffers = rotating_buffers(self._backend, _data(self._backend, spec, self._batch))
        return _measured(self._backend, self._buffers, self._threads, spec, samples, protocol)


def measure(
    backend: Backend,
    candidates: Iterable[KernelSpec],
    batch: int,
    threads: int,
    measured: Callable[..., Point] | None = None,
) -> list[Point]:
    """Measure the candidates of one order, then the best with their variations, then the winner in every protocol.

    What does not compile is recorded as such. Candidates may have been built before. `measured(spec, samples,
    protocol)` is who measures, by default this process: see `batchchol.tune.isolated`.
    """
    pool = sorted(candidates, key=chunk_of)
    measured = measured or _Bench(backend, batch, threads).measure
    first = [measured(spec, FIRST_SAMPLES) for spec in pool]
    ranked = sorted((point for point in first if point.status == "correct"), key=lambda p: p.median_seconds)
    finalists = sorted((varied for spec in _finalists(ranked) for varied in variations(spec)), key=chunk_of)
    backend.build(finalists)
    final = [measured(spec, FINAL_SAMPLES) for spec in finalists]
    winners = [best(final).spec] if finalists else []
    others = itertools.product(winners, backend.protocols[1:])
    return first + final + [measured(spec, FINAL_SAMPLES, other) for spec, other in others]


def _finalists(ranked: Sequence[Point]) -> list[KernelSpec]:
    """The best kernels of each family for any chunk, and those for one chunk alone, pipelines apart."""
    finalists = []
    for kind in dict.fromkeys(_kind(point.spec) for point in ranked):
        rivals = [point.spec for point in ranked if _kind(point.spec) == kind]
        finalists += rivals[: GPU_FINALISTS if TARGETS[rivals[0].target].gpu else SIMD_FINALISTS]
    return finalists


def _kind(spec: KernelSpec) -> tuple[object, ...]:
    return spec.family, spec.schedule.stride, bool(getattr(spec.schedule, "pipeline", 0))


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
    data = backend.empty(spec.problem.n, batch, layout_of(spec), spec.problem.dtype)
    backend.fill(data, "diagonally_dominant")
    return data
