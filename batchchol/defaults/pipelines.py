"""Pipelines of the block family that factor and solve at once: a rule, fitted to datasets/posv_block_h200.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from batchchol.defaults.runnable import has_pdl, runs_on
from kernelgen import MAX_CHUNK, BlockSchedule, KernelSpec, SpecError

# The GPU that the rule was fitted to.
FITTED = "sm_90"
# The largest tiles, of which there are as few as cover a matrix; numbers of matrices to a block, the first that fits.
NB: Mapping[str, int] = MappingProxyType({"float32": 8, "float64": 6})
LANES = (32, 16, 8)
# Orders of packed matrices and of arrays, for one right-hand side and for several.
PACKED: Mapping[str, range] = MappingProxyType({"float32": range(29, 81), "float64": range(25, 49)})
ARRAYS: Mapping[str, range] = MappingProxyType({"float32": range(41, 65), "float64": range(25, 49)})
OF_SEVERAL = range(24, 65)
# Warps that solve: for one right-hand side, and for several, from and up to these numbers of them.
RHS, RHS_OF_SEVERAL, SEVERAL, MANY = 2, 4, 3, 9


def by_blocks(plain: KernelSpec, chunk: int | None, arch: str | None, *, nrhs: int = 1) -> KernelSpec | None:
    """The pipeline that does the operation of `plain` on many matrices, if it is the better choice.

    In chunks a block has all of one or some of it.
    """
    several = nrhs >= SEVERAL
    if nrhs >= MANY or plain.layout == "interleaved" or plain.problem.n not in _orders(plain, several):
        return None
    stride = chunk if plain.layout == "chunked" and chunk in range(2, MAX_CHUNK + 1) else None
    for lanes in LANES:
        if chunk is not None and chunk % lanes:
            continue
        found = _pipeline(plain, lanes, RHS_OF_SEVERAL if several else RHS, stride=stride, pdl=has_pdl(arch) or None)
        if found is not None and runs_on(found, arch, FITTED):
            return found
    return None


def _orders(plain: KernelSpec, several: bool) -> range:
    dtype = plain.problem.dtype
    if several and dtype == "float32":
        return OF_SEVERAL
    if plain.layout == "canonical":
        # Where multiply-adds do not round more than is allowed, tensor cores are faster.
        return ARRAYS[dtype] if plain.problem.math == "ieee" else range(0)
    return PACKED[dtype]


def _pipeline(plain: KernelSpec, lanes: int, rhs: int, **choices: Any) -> KernelSpec | None:
    """With two places for each panel; None if shared memory has no room for them."""
    n = plain.problem.n
    nb = -(-n // -(-n // NB[plain.problem.dtype]))
    try:
        return replace(plain, schedule=BlockSchedule(nb, lanes, pipeline=2, rhs=rhs, **choices))
    except SpecError:
        return None
