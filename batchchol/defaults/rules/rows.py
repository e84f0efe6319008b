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
# Orders, the threads of a matrix, blocks of a multiprocessor, and from how many packed matrices on. In float32 16,384
# of the smaller orders fill the GPU once and a third: n = 26 takes 16.9 us, by a thread to each 14.3; 24,576 of
# n = 28 take 20.2 and 29.1.
Orders = Sequence[tuple[range, int, int, int]]
SINGLE: Orders = ((range(24, 25), 4, 3, 32_768), (range(25, 29), 4, 2, 32_768), (range(29, 33), 4, 2, 16_384))
DOUBLE: Orders = ((range(19, 21), 4, 3, 16_384), (range(21, 25), 4, 2, 16_384), (range(31, 33), 8, 1, 16_384))
ROWS: Mapping[str, Orders] = MappingProxyType({"float32": SINGLE, "float64": DOUBLE})

# The same of many arrays whose rows are neighbours in memory; 16 threads are a grid. At n = 24 they take 88 us, and a
# thread to each matrix 92: since that repairs matrices and finds determinants besides, it stays the default.
ARRAYS: Orders = (
    (range(22, 24), 4, 12, 16_384),
    (range(25, 33), 4, 8, 16_384),
    (range(33, 49), 8, 8, 16_384),
    (range(49, 65), 16, 8, 16_384),
)
DOUBLE_ARRAYS: Orders = ((range(18, 25), 4, 8, 16_384), (range(25, 33), 8, 8, 16_384), (range(33, 45), 16, 8, 16_384))
OF_ARRAYS: Mapping[str, Orders] = MappingProxyType({"float32": ARRAYS, "float64": DOUBLE_ARRAYS})


def by_rows(plain: KernelSpec, chunk: int | None, arch: str | None, size: int) -> KernelSpec | None:
    """The kernel of `plain`'s problem for one right-hand side of `size` matrices, if it is the better choice."""
    if plain.problem.op != "posv" or not (found := _shared(plain, chunk, size)):
        return None
    split, blocks = found
    packed, pdl = plain.layout != "canonical", has_pdl(arch) or None
    where: dict[str, Any] = {"threads": WARP * split if packed else WARP, "stride": chunk if packed else None}
    with suppress(SpecError):
        schedule = ThreadSchedule(1, unroll="full", staged=True, rhs=1, split=split, blocks=blocks, pdl=pdl, **where)
        spec = replace(plain, schedule=schedule)
        return spec if runs_on(spec, arch, FITTED) else None
    return None


def _shared(plain: KernelSpec, chunk: int | None, size: int) -> tuple[int, int] | None:
    """Threads of a matrix, and blocks of a multiprocessor, if threads share the rows of these matrices."""
    n, dtype = plain.problem.n, plain.problem.dtype
    if plain.layout == "canonical":
        rows = (plain.order == "row") == (plain.problem.uplo == "lower")
        known = OF_ARRAYS[dtype] if rows else ()
    else:
        packed = plain.layout == "chunked" and chunk is not None and chunk % WARP == 0
        known = ROWS[dtype] if packed else ()
    chosen = (each for each in known if n in each[0] and size >= each[3])
    return next(((split, blocks) for _, split, blocks, _ in chosen), None)
