"""Kernels that factor and solve at once where several threads have the rows of a packed matrix: a rule.

Fitted to datasets/solves/posv_rows_h200.csv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from batchchol.defaults.runnable import has_pdl, runs_on
from kernelgen import KernelSpec, SpecError, ThreadSchedule
from kernelgen.gpu import WARP

# The GPU that the rule is for.
FITTED = "sm_90"
# Orders, the threads of a matrix, and blocks of a multiprocessor, of many packed matrices. In float32 and "ieee" each
# of a matrix's threads refines the pivots' roots, which takes what is gained: at n = 32 125 us and blocks 120, in
# "fast" 102 and 116.
Orders = Sequence[tuple[range, int, int]]
FAST: Orders = ((range(24, 29), 4, 3), (range(29, 33), 4, 2))
DOUBLE: Orders = ((range(19, 21), 4, 3), (range(21, 25), 4, 2))
ROWS: Mapping[tuple[str, str], Orders] = MappingProxyType(
    {("float32", "fast"): FAST, ("float64", "fast"): DOUBLE, ("float64", "ieee"): DOUBLE}
)


def by_rows(plain: KernelSpec, chunk: int | None, arch: str | None) -> KernelSpec | None:
    """The kernel of `plain`'s problem for one right-hand side of many matrices, if it is the better choice."""
    packed = plain.layout == "chunked" and chunk is not None and chunk % WARP == 0
    if plain.problem.op != "posv" or not packed:
        return None
    for orders, split, blocks in ROWS.get((plain.problem.dtype, plain.problem.math), ()):
        if plain.problem.n in orders:
            threads, pdl = WARP * split, has_pdl(arch) or None
            choices: dict[str, Any] = {
                "split": split,
                "threads": threads,
                "blocks": blocks,
                "stride": chunk,
                "pdl": pdl,
            }
            with suppress(SpecError):
                schedule = ThreadSchedule(1, unroll="full", staged=True, rhs=1, **choices)
                found = replace(plain, schedule=schedule)
                return found if runs_on(found, arch, FITTED) else None
    return None
