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
# Orders, the threads of a matrix, blocks of a multiprocessor, and from how many packed matrices on. In float32 16,384
# of the smaller orders fill the GPU once and a third: n = 26 takes 16.9 us, by a thread to each 14.3; 24,576 of
# n = 28 take 20.2 and 29.1.
Orders = Sequence[tuple[range, int, int, int]]
SINGLE: Orders = ((range(24, 25), 4, 3, 32_768), (range(25, 29), 4, 2, 32_768), (range(29, 33), 4, 2, 16_384))
DOUBLE: Orders = ((range(19, 21), 4, 3, 16_384), (range(21, 25), 4, 2, 16_384), (range(31, 33), 8, 1, 16_384))
ROWS: Mapping[str, Orders] = MappingProxyType({"float32": SINGLE, "float64": DOUBLE})


def by_rows(plain: KernelSpec, chunk: int | None, arch: str | None, size: int) -> KernelSpec | None:
    """The kernel of `plain`'s problem for one right-hand side of `size` matrices, if it is the better choice."""
    packed = plain.layout == "chunked" and chunk is not None and chunk % WARP == 0
    if plain.problem.op != "posv" or not packed:
        return None
    for orders, split, blocks, least in ROWS[plain.problem.dtype]:
        if plain.problem.n in orders and size >= least:
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
