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
# Orders, the threads of a matrix, blocks of a multiprocessor that have 32 packed matrices each, and from how many
# matrices on: 16,384 of n = 24 are not faster than by a thread to each. Chunks of 16, which float64 has, go to twice
# as many blocks of half as many.
Orders = Sequence[tuple[range, int, int, int]]
SINGLE: Orders = ((range(24, 25), 4, 3, 32_768), (range(25, 33), 4, 2, 16_384))
DOUBLE: Orders = ((range(19, 21), 4, 3, 16_384), (range(21, 25), 4, 2, 16_384), (range(31, 33), 8, 1, 16_384))
ROWS: Mapping[str, Orders] = MappingProxyType({"float32": SINGLE, "float64": DOUBLE})


def by_rows(plain: KernelSpec, chunk: int | None, arch: str | None, size: int) -> KernelSpec | None:
    """The kernel of `plain`'s problem for one right-hand side of `size` matrices, if it is the better choice."""
    matrices = _together(plain, chunk)
    if plain.problem.op != "posv" or not matrices:
        return None
    for orders, split, blocks, least in ROWS[plain.problem.dtype]:
        if plain.problem.n in orders and size >= least:
            choices: dict[str, Any] = {
                "split": split,
                "threads": matrices * split,
                "blocks": blocks * WARP // matrices,
                "stride": chunk,
                "pdl": has_pdl(arch) or None,
            }
            with suppress(SpecError):
                schedule = ThreadSchedule(1, unroll="full", staged=True, rhs=1, **choices)
                found = replace(plain, schedule=schedule)
                return found if runs_on(found, arch, FITTED) else None
    return None


def _together(plain: KernelSpec, chunk: int | None) -> int:
    """Packed matrices of a block, or 0."""
    if plain.layout != "chunked" or chunk is None:
        return 0
    half = WARP // 2 if plain.problem.dtype == "float64" else WARP
    return WARP if chunk % WARP == 0 else half if chunk % half == 0 else 0
