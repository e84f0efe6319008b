"""Does it pay to give more of the on-chip memory to the cache, or to shared memory?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Caches(_KernelQuestion):
    """Preferred split × n."""

    params = grid.axes(backend=grid.CUDA, n=grid.N, cache=grid.CACHE)
