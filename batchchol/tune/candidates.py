"""Which kernels may be the fastest of an order: the candidates of each family, and what is varied of the best."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from batchchol.defaults.registers import share_of_registers
from batchchol.tune.general_candidates import general_specs, general_variations
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
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    WholeSchedule,
)
from kernelgen.gpu import MAX_SHARED_BYTES, RESERVED_BYTES, WARP
from kernelgen.schedules import DEFAULT_THREADS
from kernelgen.schedules.axes import CACHES, LOOKINGS, MAX_RESIDENT_BLOCKS
from kernelgen.schedules.block import MAX_SPARE
from kernelgen.schedules.budget import FULL_UNROLL_BUDGET, straight_line_operations
from kernelgen.schedules.strip import GROUP
from kernelgen.schedules.strip import TILE as STRIP_TILE
from kernelgen.schedules.thread import HALVED_VECTOR_BYTES
from kernelgen.schedules.warp import BLOCK, TILE
from kernelgen.schedules.whole import MAX_WARPS as MAX_WHOLE_WARPS
from kernelgen.schedules.whole import TILE as WHOLE_TILE
from kernelgen.targets import ELEMENT_BYTES

SIMD_TILE_SIZES = (2, 3, 4, 5, 6, 8)
GPU_TILE_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
SHARED_TILE_SIZES = (1, 2, 4, 8, 16, 32)
# A thread holds a tile of the block family in its registers.
BLOCK_TILE_SIZES = (4, 5, 6, 7, 8)
# Matrices of a block up to each order: with fewer, warps are half empty wherever few tiles have work; with more, the
# block has too many threads.
BLOCK_LANES = {16: (16, 32), 32: (8, 16, 32), 48: (4, 8, 16), 64: (4, 8), 96: (2, 4), 128: (1, 2, 4)}
# How many tile sizes: those that need the least padding.
BLOCK_FITTING = 2
# Blocks of a multiprocessor: as many as have registers for a tile and what else a thread of the block family needs.
RESIDENT_BLOCKS, REGISTERS_BESIDE_A_TILE = (1, 2, 3, 4, 5, 6, 8), 32
# Pipelines: from the order up where one thread no longer holds a matrix in its registers; small tiles are for many
# threads. The fewer columns of tiles share a warp, the less of it is idle. What a thread needs beside a tile is more
# by this many registers, or a few are spilled. Groups that have panels at a time, columns that are fetched early.
PIPELINE_MIN_N, PIPELINE_TILE_SIZES = 24, (6, 7, 8)
PIPELINE_LANES = {40: (8, 16, 32), 64: (4, 8, 16), 96: (2, 4, 8), 104: (2, 4, 6), 112: (2, 4, 5), 128: (1, 2, 4)}
PIPELINE_REGISTERS, PIPELINES = 56, ((1, 2), (0, 1, 2))
# Matrices and warps of a team of the warp family, a second warp only where it has tiles. Straight-line code is for
# single warps, up to an order. Numbers of registers that a thread may need beside its tiles.
WARP_TEAMS, WARP_BLOCKS_OF_TEAMS, WARP_FULL_UNROLL_MAX_N = ((4, 1), (2, 1), (1, 1), (1, 2)), (2, 4, 8), 96
WARP_REGISTERS = (48, 80)
# Strips: of orders where they may win, by warps of a multiprocessor, and by strips in two places.
STRIP_MIN_N, STRIP_WARPS, STRIP_AHEAD = 64, (16, 20, 24), (1, 2, 4)
# Rows of the first panel to a warp of the whole family, and registers of a float32 thread; of float64 twice as many.
WHOLE_ROWS, WHOLE_REGISTERS = (24, 32, 48), 80
# The most registers of a staged triangle, and of the part of it that is in use at a time; sizes of blocks.
STAGED_REGISTERS, BLOCK_THREADS, STAGED_THREADS = 224, (32, 64, 128), (32, 64, 128, 256)
# The size of a block whose threads have all the registers that they can use.
ROOMY_THREADS = 64
# Straight-line code takes ever longer to compile: above this it is not among a CPU's candidates.
SIMD_FULL_UNROLL_MAX_N = 16
# Of larger matrices two groups do not fit the first-level cache.
SIMD_OVERLAP_MAX_N = 16


def schedules(n: int, target: str, layout: str = "chunked", dtype: str = "float32") -> Iterator[ThreadSchedule]:
    """The candidates for order n; only the best are tried with their `variations`."""
    if TARGETS[target].gpu:
        words = ELEMENT_BYTES[dtype] // 4
        if layout == "canonical" and words * (n + 1) ** 2 // 4 <= STAGED_REGISTERS:
            # In registers, tiles and their order are the compiler's.
            yield ThreadSchedule(1, "left", "full", staged=True)
        else:
            yield from _gpu_schedules(n)
        return
    sizes = sorted({nb for nb in SIMD_TILE_SIZES if nb <= n} | ({n} if n <= 8 else set()))
    unrolls = ("tiles", "full") if n <= SIMD_FULL_UNROLL_MAX_N else ("tiles",)
    for nb, looking, unroll, staged in itertools.product(sizes, LOOKINGS, unrolls, (True, False)):
        yield ThreadSchedule(nb, looking, unroll, staged=staged)


def _gpu_schedules(n: int) -> Iterator[ThreadSchedule]:
    sizes = [nb for nb in GPU_TILE_SIZES if nb <= n]
    unrolls = ("tiles", "full") if straight_line_operations(n) <= FULL_UNROLL_BUDGET else ("tiles",)
    for nb, looking, unroll, stride in itertools.product(sizes, LOOKINGS, unrolls, (None, DEFAULT_THREADS)):
        # Straight-line code on a known chunk can use all registers; the compiler by itself seldom gives it as many.
        blocks = 1 if unroll == "full" and stride else None
        yield ThreadSchedule(nb, looking, unroll, blocks=blocks, stride=stride)


def block_schedules(n: int, dtype: str = "float32") -> Iterator[BlockSchedule]:
    """The candidates of the block family for order n, on the default chunk and on the chunk of a block's matrices."""
    sizes = [nb for nb in BLOCK_TILE_SIZES if nb <= max(n, BLOCK_TILE_SIZES[0])]
    fitting = sorted(sizes, key=lambda nb: (-n % nb, -nb))
    lanes = next(numbers for largest, numbers in BLOCK_LANES.items() if n <= largest)
    for nb, number in itertools.product(fitting[:BLOCK_FITTING], lanes):
        for stride in dict.fromkeys((None, DEFAULT_THREADS, max(number, 2))):
            yield BlockSchedule(nb, number, stride=stride)
    if n >= PIPELINE_MIN_N:
        yield from _pipelines(Problem(n, dtype), [nb for nb in fitting if nb in PIPELINE_TILE_SIZES])


def _pipelines(problem: Problem, fitting: Sequence[int]) -> Iterator[BlockSchedule]:
    """Pipelines with tiles of the best-fitting size, and with the largest where that is another one."""
    lanes = next(numbers for largest, numbers in PIPELINE_LANES.items() if problem.n <= largest)
    for nb, number in itertools.product(dict.fromkeys((fitting[0], max(fitting))), lanes):
        for stride in dict.fromkeys((DEFAULT_THREADS, max(number, 2))):
            schedule = BlockSchedule(nb, number, stride=stride, pipeline=1)
            if nb == fitting[0] or stride == number:
                yield replace(schedule, blocks=_resident_blocks(schedule, problem, PIPELINE_REGISTERS)[-1])


def warp_schedules(n: int, layout: str = "chunked", math: str = "fast") -> Iterator[WarpSchedule]:
    """The candidates of the warp family for order n, on the default chunk, any, and the chunk of a team's matrices.

    Those of `ieee` update by tensor cores as well, from the second block of rows on; arrays whose rows begin in the
    middle of a sector are staged as well. Whatever the chunk, some numbers of teams and straight-line code are better
    than others: they are tried on one.
    """
    for matrices, warps in WARP_TEAMS:
        if warps > 1 and n <= BLOCK:
            continue
        strides = dict.fromkeys((DEFAULT_THREADS, None, max(matrices, 2)) if layout == "chunked" else (None,))
        usual, *others = WARP_BLOCKS_OF_TEAMS if warps == 1 else (1,)
        schedules = [WarpSchedule(matrices, warps, usual, stride=stride) for stride in strides]
        found = [*schedules, *(replace(schedules[0], teams=teams) for teams in others)]
        if n <= WARP_FULL_UNROLL_MAX_N and warps == 1:
            found += [replace(schedules[-1], unroll="full", teams=teams) for teams in (usual, others[-1])]
        if layout == "canonical" and warps == 1 and n % TILE:
            found += [replace(each, staged=True) for each in found]
        yield from found
        if math == "ieee" and n > BLOCK:
            yield from (replace(each, update="tensor") for each in found)


def strip_schedules(n: int) -> Iterator[StripSchedule]:
    """The candidates of the strip family for order n, on the chunk of a block's matrices."""
    side = -(-n // STRIP_TILE)
    if n >= STRIP_MIN_N:
        for warps, ahead in itertools.product(STRIP_WARPS, STRIP_AHEAD):
            yield StripSchedule(max(warps, side), min(ahead, side - 1), stride=GROUP)


def whole_schedules(n: int) -> Iterator[WholeSchedule]:
    """The candidates of the whole family for order n: by how many rows of the first panel each warp takes."""
    rows = -(-n // WHOLE_TILE) * WHOLE_TILE
    for warps in dict.fromkeys(-(-rows // each) for each in WHOLE_ROWS):
        yield WholeSchedule(min(warps, MAX_WHOLE_WARPS))


def shared_schedules(n: int) -> Iterator[SharedSchedule]:
    """The candidates of the shared family for order n."""
    for nb, looking in itertools.product(SHARED_TILE_SIZES, LOOKINGS):
        if nb <= n:
            yield SharedSchedule(nb, looking)


def variations(spec: KernelSpec, *, pdl: bool = True) -> list[KernelSpec]:
    """A good candidate with the choices that matter less: on a CPU prefetching, and how arrays are staged.

    On a GPU blocks, caches and `pdl`.
    """
    schedule = spec.schedule
    varied: Sequence[Schedule]
    match schedule:
        case ThreadSchedule() if spec.problem.operation.general:
            varied = general_variations(spec)
        case BlockSchedule() if schedule.pipeline:
            varied = _pipelined(schedule, spec.problem)
        case WarpSchedule():
            choices = itertools.product(_resident_teams(schedule, spec.problem), CACHES)
            varied = [replace(schedule, blocks=blocks, cache=cache) for blocks, cache in choices]
        case WholeSchedule():
            varied = [replace(schedule, blocks=blocks) for blocks in _resident_matrices(schedule, spec.problem)]
        case BlockSchedule():
            choices = itertools.product(_resident_blocks(schedule, spec.problem), CACHES)
            varied = [replace(schedule, blocks=blocks, cache=cache) for blocks, cache in choices]
        case StripSchedule():
            varied = [schedule]
        case SharedSchedule():
            varied = [replace(schedule, cache=cache) for cache in CACHES]
        case ThreadSchedule() if TARGETS[spec.target].gpu:
            staged = [replace(schedule, threads=threads) for threads in STAGED_THREADS if schedule.staged]
            fitting = [each for each in staged if each.stage(spec.problem).shared_bytes <= MAX_SHARED_BYTES]
            varied = fitting or _direct(schedule)
        case ThreadSchedule():
            varied = _on_cpus(schedule, spec)
    early = (pdl and TARGETS[spec.target].gpu and "pdl" not in spec.problem.operation.fixed) or None
    return [replace(spec, schedule=replace(schedule, pdl=early)) for schedule in varied]


def _pipelined(schedule: BlockSchedule, problem: Problem) -> list[BlockSchedule]:
    """Pipelines of other depths, and with spare warps, as far as shared memory has room for all blocks."""
    depths = itertools.product(_resident_blocks(schedule, problem)[-2:], *PIPELINES)
    varied = [replace(schedule, blocks=blocks, pipeline=p, early=early) for blocks, p, early in depths]
    varied += _with_spare_warps(schedule, problem)
    return [each for each in varied if (each.blocks or 1) * each.shape(problem).shared_bytes <= MAX_SHARED_BYTES]


def _on_cpus(schedule: ThreadSchedule, spec: KernelSpec) -> list[ThreadSchedule]:
    """With prefetching and without; arrays by halves of wide vectors, small ones with overlap, too."""
    wide = spec.layout == "canonical" and TARGETS[spec.target].vector_bytes >= HALVED_VECTOR_BYTES
    small = spec.layout == "canonical" and spec.problem.n <= SIMD_OVERLAP_MAX_N
    halves, overlaps = ((None, True) if has else (None,) for has in (wide, small))
    return [
        replace(schedule, prefetch=prefetch, half=half, overlap=overlap)
        for prefetch in (True, False)
        for half in halves
        for overlap in overlaps
    ]


def _direct(schedule: ThreadSchedule) -> list[ThreadSchedule]:
    """Block sizes and caches, and one with all the registers that the code can use, which needs no cache."""
    choices = itertools.product(BLOCK_THREADS, CACHES)
    varied = [replace(schedule, threads=threads, blocks=None, cache=cache) for threads, cache in choices]
    return [*varied, replace(schedule, threads=ROOMY_THREADS, blocks=1, cache="l1")]


def _resident_blocks(schedule: BlockSchedule, problem: Problem, beside: int = REGISTERS_BESIDE_A_TILE) -> list[int]:
    """Numbers of blocks that leave a thread `beside` registers beside its tile."""
    words = ELEMENT_BYTES[problem.dtype] // 4
    needed = words * schedule.nb**2 + beside
    warps = schedule.shape(problem).threads // WARP
    return [blocks for blocks in RESIDENT_BLOCKS if blocks == 1 or share_of_registers(blocks * warps) >= needed]


def _with_spare_warps(schedule: BlockSchedule, problem: Problem) -> list[BlockSchedule]:
    """With the most spare warps that leave every thread its registers, or all that it needs beside its tile.

    The last columns are theirs: more are fetched early, so that some are of other warps.
    """
    shape, words = schedule.shape(problem), ELEMENT_BYTES[problem.dtype] // 4
    warps = shape.working_threads // WARP
    kept = min(share_of_registers(warps), words * schedule.nb**2 + PIPELINE_REGISTERS)
    spare = max(number for number in range(min(warps, MAX_SPARE + 1)) if share_of_registers(warps + number) >= kept)
    early = (0, shape.side // 2 + 1)
    return [replace(schedule, blocks=1, early=columns, spare=spare) for columns in early if spare]


def _resident_teams(schedule: WarpSchedule, problem: Problem) -> list[int]:
    """Numbers of blocks: one, which leaves a thread all registers, and the most that there are registers for."""
    shape = schedule.shape(problem)
    warps, tiles = shape.threads // WARP, 4 * schedule.matrices * shape.most_tiles
    fitting = [
        [
            blocks
            for blocks in range(1, MAX_RESIDENT_BLOCKS + 1)
            if share_of_registers(blocks * warps) >= tiles + beside
        ]
        for beside in WARP_REGISTERS
    ]
    return sorted({1, *(blocks[-1] for blocks in fitting if blocks)})


def _resident_matrices(schedule: WholeSchedule, problem: Problem) -> list[int]:
    """Numbers of blocks: the most that there is shared memory for, if that leaves registers, and one less."""
    shape = schedule.shape(problem)
    most = min(MAX_SHARED_BYTES // (shape.shared_bytes + RESERVED_BYTES), MAX_RESIDENT_BLOCKS)
    beside = ELEMENT_BYTES[problem.dtype] // 4 * WHOLE_REGISTERS
    fitting = [blocks for blocks in range(1, most + 1) if share_of_registers(blocks * schedule.warps) >= beside]
    return fitting[-2:] or [1]


def specs(
    n: int,
    dtype: str,
    math: str,
    target: str,
    families: Sequence[str] = (ThreadSchedule.family,),
    layout: str = "chunked",
    op: str = "potrf",
) -> list[KernelSpec]:
    """The candidates of these families for order n in a layout, canonical in rows: those that can be built."""
    if op != "potrf":
        return list(general_specs(Problem(n, dtype, op=op, math=math), layout, target))
    candidates: dict[str, Iterable[Schedule]] = {
        ThreadSchedule.family: schedules(n, target, layout, dtype),
        SharedSchedule.family: shared_schedules(n),
        BlockSchedule.family: block_schedules(n, dtype),
        WarpSchedule.family: warp_schedules(n, layout, math),
        StripSchedule.family: strip_schedules(n),
        WholeSchedule.family: whole_schedules(n),
    }
    chosen = itertools.chain.from_iterable(candidates[family] for family in families)
    return [spec for schedule in chosen if (spec := _spec(Problem(n, dtype, math=math), layout, schedule, target))]


def _spec(problem: Problem, layout: str, schedule: Schedule, target: str) -> KernelSpec | None:
    try:
        return KernelSpec(problem, layout, "row" if layout == "canonical" else "col", schedule, target)
    except SpecError:
        return None


def families_of(target: str) -> tuple[str, ...]:
    """The families that a target has."""
    return tuple(FAMILIES) if TARGETS[target].gpu else (ThreadSchedule.family,)


def layout_of(spec: KernelSpec) -> Layout:
    """The layout of the batch that a candidate is measured on."""
    return Layout(spec.layout, chunk_of(spec) if spec.layout == "chunked" else None, spec.order)


def chunk_of(spec: KernelSpec) -> int:
    """The chunk of the batch that a candidate is measured on: the only one that it runs on, or the default."""
    return spec.schedule.stride or (DEFAULT_THREADS if TARGETS[spec.target].gpu else spec.lanes)
