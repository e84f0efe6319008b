"""Does it pay to factor in a chunk that stays in cache, and to store the result past the caches?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Staging(_KernelQuestion):
    """Staged × n."""

    params = grid.axes(backend=grid.CPU, n=grid.N, staged=grid.STAGED)
