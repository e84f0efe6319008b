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
# Orders, the threads of a matrix, blocks of a multiprocessor that have 32 packed matrices each, and from how many
# matrices on: 16,384 of n = 24 are not faster than by a thread to each. Chunks of 16, which float64 has, go to twice
# as many blocks of half as many.
Orders = Sequence[tuple[range, int, int, int]]
SINGLE: Orders = ((range(24, 25), 4, 3, 32_768), (range(25, 33), 4, 2, 16_384))
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
    matrices, split, blocks = found
    threads, stride = (WARP, None) if plain.layout == "canonical" else (matrices * split, chunk)
    choices: dict[str, Any] = {"split": split, "threads": threads, "stride": stride, "blocks": blocks}
    with suppress(SpecError):
        schedule = ThreadSchedule(1, unroll="full", staged=True, rhs=1, pdl=has_pdl(arch) or None, **choices)
        spec = replace(plain, schedule=schedule)
        return spec if runs_on(spec, arch, FITTED) else None
    return None


def _shared(plain: KernelSpec, chunk: int | None, size: int) -> tuple[int, int, int] | None:
    """Matrices of a block, their threads, and blocks of a multiprocessor, if threads share these matrices' rows."""
    n, dtype = plain.problem.n, plain.problem.dtype
    if plain.layout == "canonical":
        rows = (plain.order == "row") == (plain.problem.uplo == "lower")
        matrices, known = WARP, OF_ARRAYS[dtype] if rows else ()
    else:
        matrices = _together(plain, chunk)
        known = ROWS[dtype] if matrices else ()
    chosen = (each for each in known if n in each[0] and size >= each[3])
    return next(((matrices, split, blocks * WARP // matrices) for _, split, blocks, _ in chosen), None)


def _together(plain: KernelSpec, chunk: int | None) -> int:
    """Packed matrices of a block, or 0."""
    if plain.layout != "chunked" or chunk is None:
        return 0
    half = WARP // 2 if plain.problem.dtype == "float64" else WARP
    return WARP if chunk % WARP == 0 else half if chunk % half == 0 else 0
