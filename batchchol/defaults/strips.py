"""Strips that factor and solve at once: a rule, fitted to datasets/posv_variants_h200.csv."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from batchchol.defaults.runnable import has_pdl, runs_on
from kernelgen import KernelSpec, SpecError, StripSchedule
from kernelgen.schedules.strip import GROUP, TILE

# The GPU that the rule is for.
FITTED = "sm_90"
# Orders of packed matrices, one group to a chunk.
PACKED = range(65, 129)
# Warps with tiles, by strips; and warps that solve, the first number with which two strips can be ahead.
WARPS: Mapping[int, int] = MappingProxyType({5: 18, 6: 24, 7: 24, 8: 27})
SOLVERS = (2, 1)


def by_strips(plain: KernelSpec, chunk: int | None, arch: str | None) -> KernelSpec | None:
    """The strips that do the operation of `plain` on many matrices, if they are the better choice."""
    n, single = plain.problem.n, plain.problem.dtype == "float32"
    if not single or plain.layout != "chunked" or chunk != GROUP or n not in PACKED:
        return None
    side = -(-n // TILE)
    for solvers in SOLVERS:
        for ahead in range(side - 1, 1, -1):
            with suppress(SpecError):
                schedule = StripSchedule(WARPS[side], ahead, rhs=solvers, stride=chunk, pdl=has_pdl(arch) or None)
                found = replace(plain, schedule=schedule)
                return found if runs_on(found, arch, FITTED) else None
    return None
