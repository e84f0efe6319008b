"""Does prefetching the next group of matrices pay?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Prefetching(_KernelQuestion):
    """Prefetch × n."""

    params = grid.axes(backend=grid.CPU, n=grid.N, prefetch=grid.PREFETCH)
