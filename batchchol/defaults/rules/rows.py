"""Kernels that factor and solve at once where several threads have the rows of a matrix: a rule.

Fitted to datasets/solves/posv_rows_h200.csv, of arrays to posv_rows_arrays_h200.csv beside it.
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
# Orders, the threads of a matrix, and blocks of a multiprocessor, of many packed matrices. From n = 24 to 28 those of
# float32 are up to a fifth faster at 131,072 matrices, and a fifth slower at 16,384. In float32 and "ieee" each of a
# matrix's threads refines the pivots' roots: at n = 32 125 us and blocks 120, in "fast" 100 and 116.
Orders = Sequence[tuple[range, int, int]]
FAST: Orders = ((range(29, 33), 4, 2),)
DOUBLE: Orders = ((range(19, 21), 4, 3), (range(21, 25), 4, 2))
ROWS: Mapping[tuple[str, str], Orders] = MappingProxyType(
    {("float32", "fast"): FAST, ("float64", "fast"): DOUBLE, ("float64", "ieee"): DOUBLE}
)

# The same of many arrays whose rows are neighbours in memory; 16 threads are a grid. At n = 24 they take 88 us, and a
# thread to each matrix 92: since that repairs matrices and finds determinants besides, it stays the default.
ARRAYS: Orders = (
    (range(22, 24), 4, 12),
    (range(25, 33), 4, 8),
    (range(33, 49), 8, 8),
    (range(49, 65), 16, 8),
)
DOUBLE_ARRAYS: Orders = ((range(18, 25), 4, 8), (range(25, 33), 8, 8), (range(33, 45), 16, 8))
OF_ARRAYS: Mapping[str, Orders] = MappingProxyType({"float32": ARRAYS, "float64": DOUBLE_ARRAYS})


def by_rows(plain: KernelSpec, chunk: int | None, arch: str | None) -> KernelSpec | None:
    """The kernel of `plain`'s problem for one right-hand side of many matrices, if it is the better choice."""
    if plain.problem.op != "posv" or not (found := _shared(plain, chunk)):
        return None
    split, blocks = found
    packed, pdl = plain.layout != "canonical", has_pdl(arch) or None
    where: dict[str, Any] = {"threads": WARP * split if packed else WARP, "stride": chunk if packed else None}
    with suppress(SpecError):
        schedule = ThreadSchedule(1, unroll="full", staged=True, rhs=1, split=split, blocks=blocks, pdl=pdl, **where)
        spec = replace(plain, schedule=schedule)
        return spec if runs_on(spec, arch, FITTED) else None
    return None


def _shared(plain: KernelSpec, chunk: int | None) -> tuple[int, int] | None:
    """Threads of a matrix, and blocks of a multiprocessor, if threads share the rows of these matrices."""
    n, dtype, math = plain.problem.n, plain.problem.dtype, plain.problem.math
    if plain.layout == "canonical":
        rows = (plain.order == "row") == (plain.problem.uplo == "lower")
        known = OF_ARRAYS[dtype] if rows else ()
    else:
        packed = plain.layout == "chunked" and chunk is not None and chunk % WARP == 0
        known = ROWS.get((dtype, math), ()) if packed else ()
    return next(((split, blocks) for orders, split, blocks in known if n in orders), None)
