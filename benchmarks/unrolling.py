"""Does straight-line code win anywhere?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Unrolling(_KernelQuestion):
    """Unroll × n; past its operation budget, full is skipped."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, unroll=grid.UNROLL)
