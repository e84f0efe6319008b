"""The kernel that factors and solves at once where none was measured: a rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from batchchol.defaults.request import Request
from batchchol.defaults.rules.pipelines import FEW, MANY, SOME, by_blocks
from batchchol.defaults.rules.rows import by_rows
from batchchol.defaults.rules.strips import by_strips
from batchchol.defaults.rules.wholes import by_whole, of_few, of_several_at_once
from batchchol.defaults.runnable import has_pdl, runs_on
from kernelgen import MAX_CHUNK, TARGETS, KernelSpec, SpecError, ThreadSchedule, WarpSchedule
from kernelgen.refusals import require

# From this order on GPUs bring triangles to shared memory first: 131,072 matrices take 9 us in place of 12 at n = 8,
# 25 in place of 32 at n = 16 (datasets/solves/posv_h200.csv).
STAGED_FROM = 4
# Orders, the right-hand sides that a thread solves for at a time, as many as registers have room for, and threads of
# a block, float32. At n = 24 a fifth warp of a multiprocessor costs more than it brings.
WIDTHS = ((8, 2, 128), (20, 2, 32), (22, 1, 32), (24, 2, 64))
# Orders, and the right-hand sides at a time where there are several: these are in registers once the factor is not.
SEVERAL: Mapping[str, tuple[tuple[int, int], ...]] = MappingProxyType(
    {"float32": ((23, 8), (24, 4)), "float64": ((18, 4),)}
)
# Of packed matrices of the first of WIDTHS' orders, if determinants are found too: 63 registers in place of 71, so
# that as many blocks have room as without (compiled for sm_90).
BLOCKS_WITH_DETERMINANTS = 8
# Orders up to which what a thread needs is in its registers, if the first rows of a factor go back to shared memory;
# arrays are read by wider pieces, which takes more (compiled for sm_90).
STRAIGHT_LINE: Mapping[str, int] = MappingProxyType({"float32": 28, "float64": 18})
STRAIGHT_LINE_OF_ARRAYS = 27
# Orders up to which a thread to a matrix is better than two kernels: a multiprocessor has room for the triangles of
# three warps. At n = 32 and 131,072 matrices it takes 150 us, two kernels take 340 (H200, 2026-11-24); of float64 at
# n = 24 221 and 360 (H100, the same day). None of float64 was measured for few matrices. From an order on they are
# better for many right-hand sides: at n = 32 157 us in place of 411 for 16 of 16,384 matrices (H100).
ONE_KERNEL: Mapping[str, int] = MappingProxyType({"float32": 32, "float64": 24})
ONE_KERNEL_OF_FEW: Mapping[str, int] = MappingProxyType({"float32": 32, "float64": 18})
MANY_FROM = 29
# Larger ones are of warps (measured on an H200, 2026-11-24): arrays; small chunks where the math is "fast", for a
# warp reads one matrix of its chunk or two; and of few matrices what is not of blocks, from a smaller order on. Of
# 4,096 too, but arrays where the math is "ieee".
FEW_FROM, CHUNK_OF_FEW, CHUNK_OF_WARPS = 20, 32, 4
# The last orders of a thread are of warps too in arrays where the math is "fast": 206 us for 243 at n = 32 (H100).
FAST_ARRAYS_FROM = 31
# Orders up to which a matrix is one warp's, whose rest are two kernels if they are packed.
ONE_WARP = 96
# Orders, and the matrices of a warp, teams of a block and blocks of a multiprocessor: of few matrices and of many.
TEAMS_OF_FEW = ((28, (2, 4, 3)), (ONE_WARP, (1, 8, 1)))
TEAMS_OF_SOME = ((32, (2, 4, 3)), (ONE_WARP, (1, 2, 8)))
TEAMS = ((32, (4, 2, 6)), (48, (2, 2, 6)), (64, (2, 2, 4)))
# From this order on few are updated by tensor cores in "ieee" too.
FEW_BY_TENSOR_FROM = 29
# Few matrices whose warps have a short chain of instructions: batches, whether in small chunks, the first order;
# and up to which one matrices, teams and blocks as above, and loops. 1,024 arrays of n = 16 take 2.4 us by them,
# 4.2 by threads, of 32 5.4 and 6.6, of 64 12.6 and 15.0, chunks of two of n = 32 5.7 and 6.5; 4,096 arrays of n =
# 24 8.3 and 10.6 in "ieee" (datasets/solves/posv_chain_h200.csv). The smallest orders are updated without tensor
# cores.
Chains = tuple[tuple[int, tuple[int, int, int], str], ...]
SHORT_CHAINS: Mapping[tuple[int, bool], tuple[int, Chains]] = MappingProxyType(
    {
        (FEW, False): (16, ((24, (2, 4, 1), "full"), (32, (2, 4, 1), "tiles"), (64, (1, 2, 1), "full"))),
        (FEW, True): (20, ((32, (2, 4, 1), "tiles"), (64, (1, 8, 1), "tiles"))),
        (SOME, False): (24, ((32, (4, 2, 2), "tiles"),)),
    }
)
SHORT_BY_TENSOR_FROM = 17
# Threads of a block of few arrays of the smallest orders, in place of 128: more multiprocessors have one. 2.1 us at
# n = 8 in place of 2.3.
THREADS_OF_FEW = 32
# Right-hand sides up to which they are the better choice, for they solve for one after the other.
COLUMNS_OF_WARPS = 2
# Batches that are served apart: few matrices, some, many, and more.
BATCHES = (FEW, SOME, 16_384, 32_768)
FITTED = "sm_90"
# Of CPUs: the largest orders of straight-line code and of packed matrices read once; tiles of those, and of others.
STRAIGHT_LINE_ON_CPUS, READ_ONCE, NB_READ_ONCE, NB = 8, 32, 2, 4
NB_OF_GPUS = MappingProxyType({"float32": 8, "float64": 4})


def two_kernels(request: Request, nrhs: int = 1) -> bool:
    """Whether one kernel that factors and another that solves are the better choice for `nrhs` right-hand sides."""
    problem = request.problem
    if not TARGETS[request.target].gpu or _at_once(request, nrhs) is not None:
        return False
    few = _few(request)
    if problem.n <= (ONE_KERNEL_OF_FEW if few else ONE_KERNEL)[problem.dtype]:
        return nrhs >= MANY and problem.n >= MANY_FROM
    if nrhs > COLUMNS_OF_WARPS:
        return True
    # Of the largest orders of float64 there is no kernel at all.
    with suppress(SpecError):
        size = nearest_size(request.size)
        return shared_by_several(request.plain, request.chunk, request.arch, size) is None
    return True


def nearest_size(batch: int) -> int:
    """The one of `BATCHES` that a batch is served as: the nearest by ratio."""
    return min(BATCHES, key=lambda size: max(size / max(batch, 1), batch / size))


def of_several(request: Request, nrhs: int) -> KernelSpec | None:
    """The kernel for `nrhs` right-hand sides where the one for a single one is not the better choice."""
    if nrhs <= 1 or not TARGETS[request.target].gpu:
        return None
    return _at_once(request, nrhs) or _instead_of_rows(request)


def _at_once(request: Request, nrhs: int) -> KernelSpec | None:
    """The kernel that solves for several right-hand sides at a time."""
    if nrhs <= COLUMNS_OF_WARPS or not TARGETS[request.target].gpu:
        return None
    with suppress(SpecError):
        plain, size = request.plain, nearest_size(request.size)
        if not (size == FEW and of_few(plain, request.chunk)) and (found := _by_threads(request, nrhs)):
            return found
        # Some of float32 are as many are: 69 us at n = 64 for eight of 4,096 arrays, by two kernels 141.
        few = size == FEW or (size == SOME and request.problem.dtype == "float64")
        found = of_several_at_once(plain, request.chunk, request.arch, nrhs, few=few)
        return found or (None if _few(request) else by_blocks(plain, request.chunk, request.arch, nrhs=nrhs))
    return None


def _instead_of_rows(request: Request) -> KernelSpec | None:
    """The kernel where those of a single right-hand side would factor again for each."""
    with suppress(SpecError):
        plain, size, where = request.plain, nearest_size(request.size), (request.chunk, request.arch)
        if size > SOME and by_rows(plain, *where, size):
            return shared_by_several(plain, *where, size, rows=False) or fused(plain, *where)
    return None


def _by_threads(request: Request, nrhs: int) -> KernelSpec | None:
    """The kernel with a thread to each matrix that solves for as many right-hand sides at a time as it can."""
    n, plain = request.problem.n, request.plain
    most = next((most for order, most in SEVERAL[request.problem.dtype] if n <= order), 1)
    where = request.chunk, request.arch
    if n < STAGED_FROM or most == 1 or shared_by_several(plain, *where, nearest_size(request.size), rows=False):
        return None
    found = fused(plain, *where)
    if not (isinstance(found.schedule, ThreadSchedule) and found.schedule.unroll == "full"):
        return None
    return replace(found, schedule=replace(found.schedule, rhs=min(most, 1 << (nrhs - 1).bit_length())))


def _few(request: Request) -> bool:
    return nearest_size(request.size) <= SOME


def fused_by_batch(plain: KernelSpec, chunk: int | None, arch: str | None) -> Iterator[tuple[int, KernelSpec]]:
    """The kernel of `plain`'s problem on a GPU for each of `BATCHES`, as far as there is one.

    Raises
    ------
    SpecError
        If there is none: shared memory has no room for the triangles of a warp's threads.
    """
    shared = {size: shared_by_several(plain, chunk, arch, size) for size in BATCHES}
    alone = None
    try:
        alone = fused(plain, chunk, arch)
    except SpecError:
        if not any(shared.values()):
            raise
    for size in BATCHES:
        if found := shared[size] or (alone and _spread(alone, size)):
            yield size, found


def _spread(alone: KernelSpec, size: int) -> KernelSpec:
    """The kernel of a thread to each matrix, in smaller blocks for few arrays."""
    schedule = alone.schedule
    if size > SOME or alone.layout != "canonical" or not isinstance(schedule, ThreadSchedule):
        return alone
    small = schedule.threads == WIDTHS[0][2]
    return replace(alone, schedule=replace(schedule, threads=THREADS_OF_FEW)) if small else alone


def shared_by_several(
    plain: KernelSpec, chunk: int | None, arch: str | None, size: int, *, rows: bool = True
) -> KernelSpec | None:
    """The kernel whose threads share matrices, if that is the better choice for a batch of `BATCHES`.

    `rows`: for a single right-hand side.
    """
    if rows and size > SOME and (found := by_rows(plain, chunk, arch, size)):
        return found
    if rows and (found := _by_short_chains(plain, chunk, arch, size)):
        return found
    strips = by_strips(plain, chunk, arch) if size > SOME else None
    other = by_blocks(plain, chunk, arch, batch=size) or strips or by_warps(plain, chunk, arch, size)
    return other or by_whole(plain, arch)


def by_warps(plain: KernelSpec, chunk: int | None, arch: str | None, size: int) -> KernelSpec | None:
    """The kernel of the warp family for `plain`'s problem, if there is one that is the better choice."""
    n, math = plain.problem.n, plain.problem.math
    packed = plain.layout != "canonical"
    few = size == FEW or (size == SOME and (packed or math == "fast"))
    largest = CHUNK_OF_FEW if few else CHUNK_OF_WARPS * (math == "fast" and n <= ONE_WARP)
    if packed and (plain.layout == "interleaved" or chunk is None or chunk > largest):
        return None
    first = FAST_ARRAYS_FROM if math == "fast" and not packed else ONE_KERNEL["float32"] + 1
    if n < (FEW_FROM if few and not (packed and size == SOME) else first):
        return None
    measured = TEAMS_OF_FEW if size == FEW else TEAMS_OF_SOME if few else TEAMS
    matrices, teams, blocks = _teams(n, chunk if packed else None, measured)
    warps = 1 if n <= ONE_WARP else 2
    # In "ieee" too: of many arrays of n = 64 1,170 us in place of 1,378 (H200).
    update = None if few and n < FEW_BY_TENSOR_FROM else "tensor"
    stride, pdl = chunk if packed and chunk in range(2, MAX_CHUNK + 1) else None, has_pdl(arch) or None
    try:
        schedule = WarpSchedule(matrices, warps, teams, update=update, blocks=blocks, stride=stride, pdl=pdl)
        found = replace(plain, schedule=schedule)
    except SpecError:
        return None
    return found if runs_on(found, arch, FITTED) else None


def _by_short_chains(plain: KernelSpec, chunk: int | None, arch: str | None, size: int) -> KernelSpec | None:
    """The kernel of few matrices whose warps take registers for a short chain of instructions."""
    n, packed = plain.problem.n, plain.layout != "canonical"
    if packed and (plain.layout == "interleaved" or chunk is None or chunk not in range(2, CHUNK_OF_WARPS + 1)):
        return None
    first, chains = SHORT_CHAINS.get((size, packed), (0, ()))
    chain = next((each for each in chains if first <= n <= each[0]), None)
    if chain is None:
        return None
    _, (matrices, teams, blocks), unroll = chain
    update, stride = "tensor" if n >= SHORT_BY_TENSOR_FROM else "fma", chunk if packed else None
    how = WarpSchedule(matrices, 1, teams, update=update, unroll=unroll, blocks=blocks, stride=stride, few=True)
    with suppress(SpecError):
        schedule = replace(how, pdl=has_pdl(arch) or None)
        found = replace(plain, schedule=schedule)
        return found if runs_on(found, arch, FITTED) else None
    return None


def _teams(n: int, chunk: int | None, measured: Sequence[tuple[int, tuple[int, int, int]]]) -> tuple[int, int, int]:
    """Matrices of a warp, teams of a block, and blocks of a multiprocessor."""
    if n > ONE_WARP:
        return 1, 1, 4
    for most, teams in measured:
        if n <= most:
            return teams
    # The warps that read the same lines are of one block.
    together = 1 if chunk is None else 2 if chunk == 2 else 4
    return 1, together, 8 // together


def fused(plain: KernelSpec, chunk: int | None, arch: str | None) -> KernelSpec:
    """The kernel of `plain`'s problem, for this chunk alone.

    Raises
    ------
    SpecError
        If a GPU's shared memory has no room for the triangles of a warp.
    """
    n, dtype = plain.problem.n, plain.problem.dtype
    if not TARGETS[plain.target].gpu:
        return replace(plain, schedule=_on_a_cpu(plain))
    if plain.problem.operation.multiplies:
        works = "no thread has room for it: determinants of so large matrices are found apart"
        require(n <= ONE_KERNEL[dtype], "n", n, works)
    canonical = plain.layout == "canonical"
    straight = n <= (min(STRAIGHT_LINE_OF_ARRAYS, STRAIGHT_LINE[dtype]) if canonical else STRAIGHT_LINE[dtype])
    widths = (each for each in WIDTHS if n <= each[0] and dtype == "float32")
    _, rhs, threads = next(widths, (n, None, None))
    determined = plain.problem.operation.multiplies and not canonical and threads == WIDTHS[0][2]
    schedule = ThreadSchedule(
        1 if straight else NB_OF_GPUS[dtype],
        unroll="full" if straight else "tiles",
        staged=True if n >= STAGED_FROM or canonical else None,
        stride=chunk if plain.layout == "chunked" and chunk in range(2, MAX_CHUNK + 1) else None,
        pdl=has_pdl(arch) or None,
        rhs=rhs,
        threads=threads,
        blocks=BLOCKS_WITH_DETERMINANTS if determined else None,
    )
    return replace(plain, schedule=schedule)


def _on_a_cpu(plain: KernelSpec) -> ThreadSchedule:
    """Within a tenth or so of the fastest of those in datasets/solves/posv_epyc.csv.

    A small packed group is read once, and small tiles that look as far back as can be keep up with that; a large one,
    and one that was transposed, is in cache, and its tiles are as large as the registers have room for.
    """
    n = plain.problem.n
    if n <= STRAIGHT_LINE_ON_CPUS:
        return ThreadSchedule(min(NB, n), unroll="full")
    if plain.layout != "canonical" and n <= READ_ONCE:
        return ThreadSchedule(NB_READ_ONCE, "top")
    few = TARGETS[plain.target].registers <= NB * NB
    return ThreadSchedule(NB - 1, "top") if few else ThreadSchedule(NB)
