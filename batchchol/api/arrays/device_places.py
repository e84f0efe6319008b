"""The caller's arrays on a GPU that results go to."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from batchchol.api.columns import Shape, check_out


def given_place(
    out: Any,
    shape: Shape,
    dtype: np.dtype[Any],
    what: str,
    others: Iterable[tuple[int, int]],
    *,
    expected: str = "memory of its own",
) -> Any:
    """Where an array lies that is given for results, which messages call `what`: its `memory.View`.

    `others` are the addresses and sizes of pieces of memory that it may have no byte in common with; `expected` says
    what it may be.

    Raises
    ------
    TypeError, ValueError
        If it is no writeable array on the GPU of this shape and dtype, or has.
    """
    from batchchol.backends.cuda import memory

    if not memory.is_device_array(out):
        raise TypeError(f"out: got {type(out).__name__}, expected an array on the GPU, where the {what} are made")
    found = memory.view(out, "out")
    check_out(found.shape, found.dtype, shape, dtype, what)
    if not memory.is_writeable(out):
        raise ValueError("out: got a read-only array, expected one that can be written: copy it")
    size = prod(shape) * dtype.itemsize
    if any(overlap(found.address, size, *other) for other in others):
        raise ValueError(f"out: shares memory with an input, expected {expected}")
    return found


def overlap(first: int, size: int, second: int, other: int) -> bool:
    """Whether two pieces of memory, by their addresses and sizes, have bytes in common."""
    return first < second + other and second < first + size
