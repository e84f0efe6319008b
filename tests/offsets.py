"""The index map of every layout, element by element: what copies and kernels are held to."""

from __future__ import annotations

from batchchol.batches.layouts import stride
from kernelgen import Layout


def element_offset(n: int, batch: int, layout: Layout, m: int, i: int, j: int) -> int:
    """The offset of element (i, j) of matrix m in the flat array, in elements.

    Raises
    ------
    IndexError
        If the matrix or the element is outside the batch.
    """
    if not (0 <= m < batch and 0 <= i < n and 0 <= j < n):
        raise IndexError(f"(m, i, j)={(m, i, j)} is outside a batch of {batch} matrices of order {n}")
    element = i * n + j if layout.order == "row" else j * n + i
    if layout.kind == "canonical":
        return m * n * n + element
    apart = stride(batch, layout)
    return (m // apart * n * n + element) * apart + m % apart
