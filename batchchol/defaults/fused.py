"""The kernel that factors and solves at once where none was measured: a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from batchchol.defaults.request import Request
from batchchol.defaults.runnable import has_pdl, runs_on
from kernelgen import MAX_CHUNK, TARGETS, KernelSpec, SpecError, ThreadSchedule, WarpSchedule

# From this order on GPUs bring triangles to shared memory first: 131,072 matrices take 9 us in place of 12 at n = 8,
# 25 in place of 32 at n = 16 (datasets/posv_h200.csv).
STAGED_FROM = 8
# Orders up to which what a thread needs is in its registers, if the first rows of a factor go back to shared memory;
# arrays are read by wider pieces, which takes more (compiled for sm_90).
STRAIGHT_LINE: Mapping[str, int] = MappingProxyType({"float32": 28, "float64": 18})
STRAIGHT_LINE_OF_ARRAYS = 27
# Orders up to which one kernel is the better choice: a multiprocessor has room for the triangles of three warps. At
# n = 32 and 131,072 matrices it takes 150 us, two kernels take 340 (H200, 2026-11-24). None of float64 was measured.
ONE_KERNEL: Mapping[str, int] = MappingProxyType({"float32": 32, "float64": 18})
# Larger ones are of warps, in chunks up to this one, for a warp reads one matrix of its chunk. Orders up to which one
# warp has a matrix, and the blocks that a multiprocessor is to have room for.
CHUNK_OF_WARPS, ONE_WARP = 8, 96
BLOCKS_OF_WARPS = ((48, 7), (64, 6), (ONE_WARP, 4))
# Right-hand sides up to which they are the better choice, for they solve for one after the other.
COLUMNS_OF_WARPS = 2
FITTED = "sm_90"
# Of CPUs: the largest orders of straight-line code and of packed matrices read once; tiles of those, and of others.
STRAIGHT_LINE_ON_CPUS, READ_ONCE, NB_READ_ONCE, NB = 8, 32, 2, 4
NB_OF_GPUS = MappingProxyType({"float32": 8, "float64": 4})


def two_kernels(request: Request, many: bool = False) -> bool:
    """Whether one kernel that factors and another that solves are the better choice.

    If there are `many` right-hand sides, more than `COLUMNS_OF_WARPS`, they are instead of those of warps.
    """
    problem = request.problem
    if not TARGETS[request.target].gpu or problem.n <= ONE_KERNEL[problem.dtype]:
        return False
    return many or by_warps(request.plain, request.chunk, request.arch) is None


def by_warps(plain: KernelSpec, chunk: int | None, arch: str | None) -> KernelSpec | None:
    """The kernel of the warp family for `plain`'s problem, if there is one that is the better choice."""
    n, chunked = plain.problem.n, plain.layout == "chunked"
    if plain.layout == "interleaved" or (chunked and (chunk or MAX_CHUNK) > CHUNK_OF_WARPS):
        return None
    warps = 1 if n <= ONE_WARP else 2
    blocks = next((blocks for most, blocks in BLOCKS_OF_WARPS if n <= most), 4)
    stride, pdl = chunk if chunked and chunk in range(2, MAX_CHUNK + 1) else None, has_pdl(arch) or None
    try:
        found = replace(plain, schedule=WarpSchedule(warps=warps, blocks=blocks, stride=stride, pdl=pdl))
    except SpecError:
        return None
    return found if runs_on(found, arch, FITTED) else None


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
    if n > ONE_KERNEL[dtype] and (found := by_warps(plain, chunk, arch)):
        return found
    canonical = plain.layout == "canonical"
    straight = n <= (min(STRAIGHT_LINE_OF_ARRAYS, STRAIGHT_LINE[dtype]) if canonical else STRAIGHT_LINE[dtype])
    schedule = ThreadSchedule(
        1 if straight else NB_OF_GPUS[dtype],
        unroll="full" if straight else "tiles",
        staged=True if n >= STAGED_FROM or canonical else None,
        stride=chunk if plain.layout == "chunked" and chunk in range(2, MAX_CHUNK + 1) else None,
        pdl=has_pdl(arch) or None,
    )
    return replace(plain, schedule=schedule)


def _on_a_cpu(plain: KernelSpec) -> ThreadSchedule:
    """Within a tenth or so of the fastest of those in datasets/posv_epyc.csv.

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
