"""LAPACK's LU factorizations in place of generated kernels; see `batchchol.backends.lapack`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.backends import blas
from batchchol.backends.lapack import each_slice, is_one_by_one, over_blocks, routine_of
from batchchol.batches.batch import Batch

Info = NDArray[np.int32]
# Of a block of matrices in columns: what is done with each, by its number.
_Work = Callable[[NDArray[Any], slice], None]


def getrf(a: NDArray[np.floating], lu: NDArray[np.floating], pivots: NDArray[np.int32], threads: int) -> Info:
    """Factor matrices (batch, n, n) into lu, which may be a, and pivots (batch, n), counted from 1; their info.

    All arrays are C-contiguous.
    """
    info = np.zeros(len(a), np.int32)

    def work(columns: NDArray[Any], block: slice) -> None:
        pivots[block], info[block] = _factored(columns)
        lu[block] = columns.swapaxes(-1, -2)

    _in_columns(work, a, (a, lu, pivots, info), threads)
    return info


def gesv(a: NDArray[np.floating], b: NDArray[np.floating], x: NDArray[np.floating], threads: int) -> Info:
    """Solve by matrices (batch, n, n) for right-hand sides (batch, n, nrhs) into x, which may be b; the info."""
    info = np.zeros(len(a), np.int32)

    def work(columns: NDArray[Any], block: slice) -> None:
        rows, info[block] = _factored(columns)
        _solve(columns, rows, b[block], x[block])

    _in_columns(work, a, (a, b, x, info), threads)
    return info


def getrs(
    lu: NDArray[np.floating],
    pivots: NDArray[np.int32],
    b: NDArray[np.floating],
    x: NDArray[np.floating],
    threads: int,
) -> None:
    """Solve by what `getrf` makes of matrices for right-hand sides (batch, n, nrhs) into x, which may be b."""

    def work(columns: NDArray[Any], block: slice) -> None:
        _solve(columns, pivots[block], b[block], x[block])

    _in_columns(work, lu, (lu, pivots, b, x), threads)


def solve(
    a: NDArray[np.floating],
    pivots: NDArray[np.int32] | None,
    b: NDArray[np.floating],
    x: NDArray[np.floating],
    threads: int,
) -> Info | None:
    """`gesv` or, by factors, which have pivots, `getrs`, which has no info."""
    if pivots is None:
        return gesv(a, b, x, threads)
    getrs(a, pivots, b, x, threads)
    return None


def factor_batch(batch: Batch, lu: Batch, pivots: NDArray[np.int32], threads: int) -> Info:
    """`getrf` of a batch of any layout into another, or itself."""
    info = np.zeros(batch.batch, np.int32)
    for start, stop in each_slice(batch):
        dense = batch.get(start, stop)
        info[start:stop] = getrf(dense, dense, pivots[start:stop], threads)
        lu.put(start, dense)
    return info


def solve_batch(
    batch: Batch,
    pivots: NDArray[np.int32] | None,
    b: NDArray[np.floating],
    x: NDArray[np.floating],
    threads: int,
) -> Info | None:
    """`solve` by a batch of matrices or factors of any layout."""
    info = np.zeros(batch.batch, np.int32)
    for start, stop in each_slice(batch):
        rows = None if pivots is None else pivots[start:stop]
        found = solve(batch.get(start, stop), rows, b[start:stop], x[start:stop], threads)
        info[start:stop] = 0 if found is None else found
    return info if pivots is None else None


def _in_columns(work: _Work, a: NDArray[np.floating], arrays: tuple[NDArray[Any], ...], threads: int) -> None:
    """Do the work on blocks of matrices, copied into columns, as LAPACK has them."""

    def block(part: slice) -> None:
        work(np.swapaxes(a[part], -1, -2).copy(), part)

    one_by_one = is_one_by_one(a.shape[-1], len(a), threads)
    with blas.at_most(threads if one_by_one else 1):
        over_blocks(block, arrays, 1 if one_by_one else threads, sum(array.nbytes for array in arrays))


def _factored(columns: NDArray[Any]) -> tuple[NDArray[np.int32], Info]:
    """Factor a few matrices in place, in this thread: the pivots and the info of each."""
    routine = routine_of(columns.dtype.name, "getrf")
    count, n, _ = columns.shape
    order = np.array(n, routine.integer)
    pivots, status = np.zeros((count, n), routine.integer), np.zeros(count, routine.integer)
    for m in range(count):
        matrix, rows, said = (each.ctypes.data + m * each.strides[0] for each in (columns, pivots, status))
        routine.call(order.ctypes.data, order.ctypes.data, matrix, order.ctypes.data, rows, said)
    return pivots.astype(np.int32), status.astype(np.int32)


def _solve(columns: NDArray[Any], pivots: NDArray[Any], b: NDArray[Any], x: NDArray[Any]) -> None:
    """Solve by a few factors, in this thread."""
    routine = routine_of(columns.dtype.name, "getrs")
    count, n, nrhs = b.shape
    solutions, rows = np.swapaxes(b, -1, -2).copy(), np.ascontiguousarray(pivots, routine.integer)
    sizes, status = np.array([n, nrhs], routine.integer), np.zeros(1, routine.integer)
    order, wide = sizes.ctypes.data, sizes.ctypes.data + sizes.itemsize
    solved = partial(routine.call, b"N", order, wide)
    for m in range(count):
        matrix, row, solution = (each.ctypes.data + m * each.strides[0] for each in (columns, rows, solutions))
        solved(matrix, order, row, solution, order, status.ctypes.data)
    np.copyto(x, np.swapaxes(solutions, -1, -2))
