"""Which tile size and which order of evaluation is best for each n?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Tiles(_KernelQuestion):
    """Tile size × looking × n."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, nb=grid.NB, looking=grid.LOOKING)
