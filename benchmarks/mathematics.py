"""What do correctly rounded square roots cost, in each precision?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Mathematics(_KernelQuestion):
    """Math × dtype × n."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, dtype=grid.DTYPE, math=grid.MATH)
