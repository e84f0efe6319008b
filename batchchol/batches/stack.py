"""Matrices in an array that is no `Batch`: rectangular ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernelgen import Layout


class Stack(NamedTuple):
    """What kernels of rectangular matrices are called with in place of batches: an array of `array_shape`."""

    data: Any
    batch: int
    layout: Layout
