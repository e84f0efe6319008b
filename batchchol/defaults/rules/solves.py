"""The kernels of a GPU that solve by given factors: a rule, fitted to datasets/solves/staged_solves_h200.csv."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from batchchol.defaults.runnable import has_pdl, runs_on
from kernelgen import KernelSpec, ThreadSchedule
from kernelgen.gpu import WARP
from kernelgen.schedules.stages.triangles import TriangleStage
from kernelgen.targets import ELEMENT_BYTES

# The GPU that the rule was fitted to.
FITTED = "sm_90"
# Batches that are served apart: for the smaller ones more threads share a matrix, from this order on.
BATCHES, SHARED_FROM = (1_024, 16_384), 24
# Bytes of a warp's triangles, packed ones and arrays, up to which few threads share a matrix, and those up to which
# they do where more would read less than whole sectors: a multiprocessor has room for three such warps.
FEW, FEW_OF_ARRAYS, MOST, SECTOR_BYTES = 60 << 10, 35 << 10, 75 << 10, 32
# Of wide chunks threads that read smaller pieces than these read too much besides.
PIECE_BYTES = 16
# Rows of a step; right-hand sides at a time, more where a thread has a matrix to itself, up to these registers.
NB, RHS, RHS_ALONE, COLUMN_REGISTERS, SHARED_REGISTERS = 4, (4, 2), (8, 4, 2), 64, 48
# Multiply-adds of the code for one right-hand side and for several that a multiprocessor's instruction caches hold.
CODE = MappingProxyType({8: 2_500, 4: 2_500, 2: 3_500})
# Tiles of solves that read factors where they are.
UNSTAGED_NB = 8


def solves(plain: KernelSpec, chunk: int | None, arch: str | None) -> Iterator[tuple[int, KernelSpec]]:
    """The kernel of `plain`'s problem for each of `BATCHES`."""
    n, itemsize = plain.problem.n, ELEMENT_BYTES[plain.problem.dtype]
    unstaged = replace(plain, schedule=ThreadSchedule(min(UNSTAGED_NB, n)))
    wide = plain.layout == "interleaved" or (chunk is not None and chunk * itemsize >= SECTOR_BYTES)
    for batch in BATCHES:
        split = _split(plain)
        if batch == BATCHES[0] and n >= SHARED_FROM:
            split = min(2 * split, WARP)
        pieces = WARP * itemsize // PIECE_BYTES
        if plain.layout != "canonical" and wide and split > pieces:
            split = pieces
            if batch != BATCHES[0] and _bytes(plain, split) > MOST:
                yield batch, unstaged
                continue
        staged = _staged(plain, split, pdl=has_pdl(arch))
        yield batch, staged if runs_on(staged, arch, FITTED) else unstaged


def _split(plain: KernelSpec) -> int:
    """Threads to a matrix of a large batch."""
    itemsize, few = ELEMENT_BYTES[plain.problem.dtype], FEW_OF_ARRAYS if plain.layout == "canonical" else FEW
    split = 1
    while split < WARP:
        whole = plain.layout == "canonical" or WARP // (2 * split) * itemsize >= SECTOR_BYTES
        if _bytes(plain, split) <= (few if whole else MOST):
            break
        split *= 2
    return split


def _bytes(plain: KernelSpec, split: int) -> int:
    """Bytes of the triangles of a warp."""
    stage = TriangleStage(plain.problem.n, plain.problem.dtype, split, False, plain.layout == "canonical")
    return stage.scalars * ELEMENT_BYTES[plain.problem.dtype]


def _staged(plain: KernelSpec, split: int, *, pdl: bool) -> KernelSpec:
    """The kernel with as many right-hand sides at a time as registers and code caches have room for."""
    n, words = plain.problem.n, ELEMENT_BYTES[plain.problem.dtype] // 4
    rows, several = -(-n // split), RHS_ALONE if split == 1 else RHS
    together, room = (rows, COLUMN_REGISTERS) if split == 1 else (rows + NB, SHARED_REGISTERS)
    fitting = (rhs for rhs in several if rhs * together * words <= room)
    rhs = next((rhs for rhs in fitting if n**2 // split * (1 + rhs) <= CODE[rhs]), 1)
    nb = min(NB, split, 1 << n.bit_length() - 1)
    schedule = ThreadSchedule(nb, unroll="full", staged=True, rhs=rhs, split=split, pdl=pdl or None)
    return replace(plain, schedule=schedule)
