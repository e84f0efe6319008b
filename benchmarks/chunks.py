"""How many matrices belong into a chunk?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Chunks(_KernelQuestion):
    """Chunk × n."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, chunk=grid.CHUNK)
