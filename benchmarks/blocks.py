"""How many threads belong into a block?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Blocks(_KernelQuestion):
    """Threads of a block × n."""

    params = grid.axes(backend=grid.CUDA, n=grid.N, block=grid.BLOCK)
