"""Pipelines of the block family that factor and solve at once: a rule.

Fitted to datasets/solves/posv_blocks_h200.csv, for fewer matrices to datasets/solves/posv_few_h200.csv.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from batchchol.defaults.runnable import has_pdl, runs_on
from kernelgen import MAX_CHUNK, BlockSchedule, KernelSpec, SpecError

# The GPU that the rule is for.
FITTED = "sm_90"
# The largest tiles, of which there are as few as cover a matrix.
NB: Mapping[str, int] = MappingProxyType({"float32": 8, "float64": 6})
# Larger ones of many packed matrices, of which none is padding: 348 us for 394
# (datasets/solves/posv_variants_h200.csv).
WHOLE_TILES: Mapping[tuple[str, int], int] = MappingProxyType({("float64", 32): 8})
# Matrices to a block, places for their panels, and the columns at least that have one place more: the first that fit.
# The smallest matrices are better off with a thread each than with fewer to a block.
LANES = ((32, 2, 0), (32, 1, 2), (16, 2, 0), (16, 1, 2), (8, 2, 0))
SMALL, LANES_OF_SMALL = 32, LANES[:1]
LANES_OF_ARRAYS = tuple(each for each in LANES if each[1] > 1)
# Batches that leave each multiprocessor few matrices, or barely enough, and how many a block then takes.
FEW, SOME, LANES_OF_FEW = 1_024, 4_096, ((8, 2, 0),)
# Orders of packed matrices and of arrays, for one right-hand side and for several: of many matrices, and of fewer.
PACKED: Mapping[str, range] = MappingProxyType({"float32": range(29, 65), "float64": range(25, 41)})
ARRAYS: Mapping[str, Container[int]] = MappingProxyType({"float32": (32, *range(37, 57)), "float64": range(25, 40)})
PACKED_OF: Mapping[int, range] = MappingProxyType({FEW: range(37, 65), SOME: range(24, 65)})
ARRAYS_OF: Mapping[int, range] = MappingProxyType({FEW: range(0), SOME: range(32, 65)})
OF_SEVERAL = range(29, 65)
# First warps that do the work of two, of tiles with padding: with fewer warps there are registers enough. 704 us for
# 817 at n = 60, 160 for 184 at 33; none of whole tiles gained (datasets/solves/posv_variants_h200.csv).
FOLDED: Mapping[range, int] = MappingProxyType({range(33, 35): 1, range(57, 64): 4})
# Warps that solve: for one right-hand side, and for several, from and up to these numbers of them.
RHS, RHS_OF_SEVERAL, SEVERAL, MANY = 2, 4, 3, 9


def by_blocks(
    plain: KernelSpec, chunk: int | None, arch: str | None, *, nrhs: int = 1, batch: int | None = None
) -> KernelSpec | None:
    """The pipeline that does the operation of `plain` if it is the better choice: for `FEW`, `SOME` or many matrices.

    In chunks a block has all of one or some of it.
    """
    several = nrhs >= SEVERAL
    if nrhs >= MANY or plain.layout == "interleaved" or plain.problem.n not in _orders(plain, several, batch):
        return None
    packed = plain.layout == "chunked"
    stride = chunk if packed and chunk in range(2, MAX_CHUNK + 1) else None
    rhs, pdl = RHS_OF_SEVERAL if several else RHS, has_pdl(arch) or None
    most = _tile(plain, few=batch in (FEW, SOME), several=several)
    for lanes, pipeline, least in LANES_OF_FEW if batch == FEW else _lanes(plain, several=several):
        if packed and chunk is not None and chunk % lanes:
            continue
        folds = packed and rhs == RHS and pipeline == 1
        fold = next((fold for orders, fold in FOLDED.items() if plain.problem.n in orders), 0) if folds else 0
        choices = {"pipeline": pipeline, "rhs": rhs, "stride": stride, "pdl": pdl, "fold": fold or None}
        found = _pipeline(plain, lanes, least, most, **choices)
        if found is not None and runs_on(found, arch, FITTED):
            return found
    return None


def _lanes(plain: KernelSpec, *, several: bool) -> Sequence[tuple[int, int, int]]:
    if plain.problem.n <= SMALL and plain.problem.dtype == "float32" and not several:
        return LANES_OF_SMALL
    return LANES_OF_ARRAYS if plain.layout == "canonical" else LANES


def _orders(plain: KernelSpec, several: bool, batch: int | None) -> Container[int]:
    dtype, fewer = plain.problem.dtype, batch in (FEW, SOME) and plain.problem.dtype == "float32"
    if several and dtype == "float32":
        return OF_SEVERAL
    if plain.layout == "canonical":
        # Warps read arrays by whole lines, and with math "fast" they are quick enough to gain by it.
        if dtype == "float32" and plain.problem.math == "fast":
            return range(0)
        return ARRAYS_OF[batch] if fewer and batch else ARRAYS[dtype]
    return PACKED_OF[batch] if fewer and batch else PACKED[dtype]


def _tile(plain: KernelSpec, *, few: bool, several: bool) -> int:
    """The largest tiles."""
    problem = plain.problem
    usual = NB[problem.dtype]
    if few or several or plain.layout != "chunked":
        return usual
    return WHOLE_TILES.get((problem.dtype, problem.n), usual)


def _pipeline(plain: KernelSpec, lanes: int, least: int, most: int, **choices: Any) -> KernelSpec | None:
    """With as many columns ahead as shared memory has room for; None if those are fewer than `least`."""
    n = plain.problem.n
    side = -(-n // most)
    for ahead in range(side - 1, least - 1, -1):
        with suppress(SpecError):
            return replace(plain, schedule=BlockSchedule(-(-n // side), lanes, ahead=ahead, **choices))
    return None
