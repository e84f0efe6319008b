"""Measuring the schedules of every family, and the table of defaults that comes of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from batchchol.backends import Backend
from batchchol.batch import Batch
from batchchol.defaults import Choice
from batchchol.errors import BatchcholError, CompileError, ResidualError
from batchchol.timing import Buffers, rotating_buffers, sample_factor
from kernelgen import (
    FAMILIES,
    TARGETS,
    BlockSchedule,
    KernelSpec,
    Layout,
    Problem,
    Schedule,
    SharedSchedule,
    SpecError,
    ThreadSchedule,
)
from kernelgen.block_shape import WARP
from kernelgen.schedules import CACHES, DEFAULT_THREADS, FULL_UNROLL_BUDGET, LOOKINGS, straight_line_operations
from kernelgen.targets import ELEMENT_BYTES

SIMD_TILE_SIZES = (2, 3, 4, 5, 6, 8)
GPU_TILE_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
SHARED_TILE_SIZES = (1, 2, 4, 8, 16, 32)
# A thread holds a tile of the block family in its registers.
BLOCK_TILE_SIZES = (4, 5, 6, 7, 8)
# Matrices of a block up to each order: with fewer, warps are half empty wherever few tiles have work; with more, the
# block has too many threads.
BLOCK_LANES = {16: (16, 32), 32: (8, 16, 32), 48: (4, 8, 16), 64: (4, 8), 96: (2, 4), 128: (1, 2, 4)}
# The least padding among the tile sizes, and this much more, in rows and columns of the matrix.
BLOCK_PADDING = 1
# Blocks of a multiprocessor: as many as have registers for a tile and what else a thread of the block family needs.
# Each of its schedulers has this many of them, for whole warps, and hands them out by eights.
RESIDENT_BLOCKS, REGISTERS_BESIDE_A_TILE = (1, 2, 3, 4, 6, 8), 32
SCHEDULERS, REGISTERS, EIGHT = 4, 16_384, 8
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


def block_schedules(n: int, math: str) -> Iterator[BlockSchedule]:
    """The candidates of the block family for order n, on the default chunk and on the chunk of a block's matrices."""
    sizes = [nb for nb in BLOCK_TILE_SIZES if nb <= max(n, BLOCK_TILE_SIZES[0])]
    least = min(-n % nb for nb in sizes)
    fitting = [nb for nb in sizes if -n % nb <= least + BLOCK_PADDING or nb == sizes[-1]]
    lanes = next(numbers for largest, numbers in BLOCK_LANES.items() if n <= largest)
    for nb, number in itertools.product(fitting, lanes):
        for stride in dict.fromkeys((None, DEFAULT_THREADS, max(number, 2))):
            yield BlockSchedule(nb, number, math, stride=stride)


def shared_schedules(n: int, math: str) -> Iterator[SharedSchedule]:
    """The candidates of the shared family for order n."""
    for nb, looking in itertools.product(SHARED_TILE_SIZES, LOOKINGS):
        if nb <= n:
            yield SharedSchedule(nb, looking, math=math)


def variations(spec: KernelSpec) -> list[KernelSpec]:
    """A good candidate with the choices that matter less: prefetching on a CPU, blocks and caches on a GPU."""
    schedule = spec.schedule
    varied: list[Schedule]
    match schedule:
        case BlockSchedule():
            choices = itertools.product(_resident_blocks(schedule, spec.problem), CACHES)
            varied = [replace(schedule, blocks=blocks, cache=cache) for blocks, cache in choices]
        case SharedSchedule():
            varied = [replace(schedule, cache=cache) for cache in CACHES]
        case ThreadSchedule() if TARGETS[spec.target].gpu:
            choices = itertools.product((32, 64, 128), CACHES)
            varied = [replace(schedule, threads=threads, cache=cache) for threads, cache in choices]
        case ThreadSchedule():
            varied = [replace(schedule, prefetch=prefetch) for prefetch in (True, False)]
    return [replace(spec, schedule=schedule) for schedule in varied]


def _resident_blocks(schedule: BlockSchedule, problem: Problem) -> list[int]:
    words = ELEMENT_BYTES[problem.dtype] // 4
    needed = words * schedule.nb**2 + REGISTERS_BESIDE_A_TILE
    warps = schedule.shape(problem).threads // WARP
    return [blocks for blocks in RESIDENT_BLOCKS if blocks == 1 or _registers(blocks * warps) >= needed]


def _registers(warps: int) -> int:
    """Those that each thread of so many warps of a multiprocessor can have."""
    each = REGISTERS // (-(-warps // SCHEDULERS) * WARP)
    return each // EIGHT * EIGHT


def specs(
    n: int, dtype: str, math: str, target: str, families: Sequence[str] = (ThreadSchedule.family,)
) -> list[KernelSpec]:
    """The candidates of these families for order n as chunked kernels: those that can be built."""
    candidates: dict[str, Iterable[Schedule]] = {
        ThreadSchedule.family: schedules(n, math, target),
        SharedSchedule.family: shared_schedules(n, math),
        BlockSchedule.family: block_schedules(n, math),
    }
    chosen = itertools.chain.from_iterable(candidates[family] for family in families)
    return [spec for schedule in chosen if (spec := _spec(Problem(n, dtype), schedule, target))]


def _spec(problem: Problem, schedule: Schedule, target: str) -> KernelSpec | None:
    try:
        return KernelSpec(problem, "chunked", "col", schedule, target)
    except SpecError:
        return None


def families_of(target: str) -> tuple[str, ...]:
    """The families that a target has."""
    return tuple(FAMILIES) if TARGETS[target].gpu else (ThreadSchedule.family,)


class _Bench:
    """Measures kernels, each on a batch of its own chunk, and keeps the data of one chunk at a time."""

    def __init__(self, backend: Backend, batch: int, threads: int) -> None:
        self._backend, self._batch, self._threads = backend, batch, threads
        self._chunk: int | None = None
        self._buffers: Buffers = []

    def measure(self, spec: KernelSpec, samples: int, protocol: str | None = None) -> Point:
        """One point of a kernel."""
        if chunk_of(spec) != self._chunk:
            self._chunk, self._buffers = chunk_of(spec), []
            self._buffers = rotating_buffers(self._backend, _data(self._backend, spec, self._batch))
        return _measured(self._backend, self._buffers, self._threads, spec, samples, protocol)


def chunk_of(spec: KernelSpec) -> int:
    """The chunk of the batch that a candidate is measured on: the only one that it runs on, or the default."""
    return spec.schedule.stride or (DEFAULT_THREADS if TARGETS[spec.target].gpu else spec.lanes)


def measure(backend: Backend, candidates: Iterable[KernelSpec], batch: int, threads: int) -> list[Point]:
    """Measure the candidates of one order, then the best with their variations, then the winner in every protocol.

    What does not compile is recorded as such. Candidates may have been built before.
    """
    pool = sorted(candidates, key=chunk_of)
    measured = _Bench(backend, batch, threads).measure
    first = [measured(spec, FIRST_SAMPLES) for spec in pool]
    ranked = sorted((point for point in first if point.status == "correct"), key=lambda p: p.median_seconds)
    finalists = sorted((varied for spec in _finalists(ranked) for varied in variations(spec)), key=chunk_of)
    backend.build(finalists)
    final = [measured(spec, FINAL_SAMPLES) for spec in finalists]
    winners = [best(final).spec] if finalists else []
    others = itertools.product(winners, backend.protocols[1:])
    return first + final + [measured(spec, FINAL_SAMPLES, other) for spec, other in others]


def _finalists(ranked: Sequence[Point]) -> list[KernelSpec]:
    """The best kernels of each family for any chunk, and those for one chunk alone."""
    finalists = []
    for kind in dict.fromkeys((point.spec.family, point.spec.schedule.stride) for point in ranked):
        rivals = [point.spec for point in ranked if (point.spec.family, point.spec.schedule.stride) == kind]
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

    The best of the kernels for any chunk come first. Where some run on one chunk alone, the best of all on that
    chunk follow. Only the thread family has defaults.
    """
    points = [point for point in points if point.spec.family == ThreadSchedule.family]
    chunks = sorted({stride for point in points if (stride := point.spec.schedule.stride) is not None})
    anywhere = _choices([point for point in points if point.spec.schedule.stride is None], None)
    return anywhere + [
        choice for chunk in chunks for choice in _choices([p for p in points if p.chunk == chunk], chunk)
    ]


def _choices(points: Sequence[Point], chunk: int | None) -> list[Choice]:
    """Winners by order; one within the margin of its predecessor's schedule keeps that."""
    choices: list[Choice] = []
    kept: ThreadSchedule | None = None
    for n in sorted({point.spec.problem.n for point in points}):
        measured_here = [point for point in points if point.spec.problem.n == n]
        winner = best(measured_here)
        schedule = winner.spec.schedule
        assert isinstance(schedule, ThreadSchedule)
        if kept is not None and kept != schedule:
            rivals = [p.median_seconds for p in measured_here if p.status == "correct" and p.spec.schedule == kept]
            if rivals and min(rivals) <= winner.median_seconds * (1 + MARGIN):
                schedule = kept
        kept = schedule
        choices.append(Choice.of(n, schedule, chunk))
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
    layout = Layout.chunked(chunk_of(spec))
    data = backend.empty(spec.problem.n, batch, layout, spec.problem.dtype)
    backend.fill(data, "diagonally_dominant")
    return data
