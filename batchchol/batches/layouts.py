"""Where matrices lie: shapes and padding of every layout, and views of arrays as matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.checks import integer
from kernelgen import MAX_N, Layout

# An interleaved batch is padded to whole groups of this many matrices: enough for every SIMD width and GPU warp.
INTERLEAVED_PADDING = 32
LARGER = Layout.canonical("row")
"""The layout of matrices that are larger than any kernel's."""


def group_matrices(layout: Layout) -> int:
    """The number of matrices that a batch in this layout is padded to a multiple of."""
    if layout.kind == "canonical":
        return 1
    return layout.chunk if layout.chunk is not None else INTERLEAVED_PADDING


def padded(batch: int, layout: Layout) -> int:
    """The number of matrices that the array of a batch has room for."""
    group = group_matrices(layout)
    return -(-batch // group) * group


def checked_sizes(n: int, batch: int) -> tuple[int, int]:
    """The order of matrices, and how many there are, as plain ints.

    Raises
    ------
    TypeError, ValueError
        If one is not an integer, or out of range.
    """
    n, batch = integer("n", n), integer("batch", batch)
    if n < 1:
        raise ValueError(f"n: got {n}, expected 1 or more: cholesky takes empty matrices too")
    if batch < 0:
        raise ValueError(f"batch: got {batch} matrices, expected 0 or more")
    return n, batch


def array_shape(n: int, batch: int, layout: Layout, m: int | None = None) -> tuple[int, ...]:
    """The shape of the C-contiguous array that holds a batch; of matrices with `m` rows the axis of rows is as long.

    canonical: (batch, n, n); interleaved: (n, n, padded batch); chunked: (chunks, n, n, chunk). The two axes of
    length n are (row, column) for order "row" and (column, row) for order "col".

    Raises
    ------
    TypeError, ValueError
        If n or batch is not an integer or out of range, or layout is no Layout.
    """
    n, batch = checked_sizes(n, batch)
    if not isinstance(layout, Layout):
        raise TypeError(f"layout: got {layout!r}, expected a Layout, such as Layout.chunked(32)")
    if n > MAX_N and layout != LARGER:
        raise ValueError(f"layout: got {layout} for matrices of order {n}, expected {LARGER!r} above {MAX_N}")
    room, rows = padded(batch, layout), n if m is None else m
    axes = (rows, n) if layout.order == "row" else (n, rows)
    if layout.kind == "canonical":
        return (batch, *axes)
    if layout.chunk is None:
        return (*axes, room)
    return (room // layout.chunk, *axes, layout.chunk)


def stride(batch: int, layout: Layout) -> int:
    """The distance between neighbouring elements of one matrix, in elements."""
    if layout.kind == "canonical":
        return 1
    return layout.chunk if layout.chunk is not None else padded(batch, layout)


def dense_view(data: NDArray[np.floating], layout: Layout) -> NDArray[np.floating]:
    """The array as (chunks, chunk, row, column), without a copy: padding included, the reference for every copy."""
    if layout.kind == "canonical":
        view = data[np.newaxis]
    elif layout.kind == "interleaved":
        view = np.moveaxis(data, -1, 0)[np.newaxis]
    else:
        view = np.moveaxis(data, -1, 1)
    return view if layout.order == "row" else np.swapaxes(view, -1, -2)
