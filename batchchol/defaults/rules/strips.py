"""Strips that factor and solve at once: a rule, fitted to datasets/solves/posv_variants_h200.csv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
# Warps with tiles, and strips with two places and with three, where three are better: 131,072 matrices of n = 80 take
# 1,483 us for 1,679, in "ieee" 1,771 for 2,081, n = 96 2,097 for 2,333, in "ieee" 2,633 for 2,930.
THREE: Mapping[tuple[int, str], tuple[int, int, int]] = MappingProxyType(
    {(5, "fast"): (24, 4, 4), (5, "ieee"): (24, 3, 2), (6, "fast"): (24, 4, 2), (6, "ieee"): (24, 3, 2)}
)


def by_strips(plain: KernelSpec, chunk: int | None, arch: str | None) -> KernelSpec | None:
    """The strips that do the operation of `plain` on many matrices, if they are the better choice."""
    n, single = plain.problem.n, plain.problem.dtype == "float32"
    if not single or plain.layout != "chunked" or chunk != GROUP or n not in PACKED:
        return None
    pdl = has_pdl(arch) or None
    for solvers, warps, ahead, third in _ways(-(-n // TILE), plain.problem.math):
        with suppress(SpecError):
            schedule = StripSchedule(warps, ahead, third=third, rhs=solvers, stride=chunk, pdl=pdl)
            found = replace(plain, schedule=schedule)
            return found if runs_on(found, arch, FITTED) else None
    return None


def _ways(side: int, math: str) -> Iterator[tuple[int, int, int, int]]:
    """Warps that solve, warps with tiles, and strips with two places and with three, the best first."""
    if three := THREE.get((side, math)):
        yield SOLVERS[0], *three
    for solvers in SOLVERS:
        for ahead in range(side - 1, 1, -1):
            yield solvers, WARPS[side], ahead, 0
