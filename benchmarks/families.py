"""Who should work on a matrix: a thread, a block with registers, or a block with shared memory?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Families(_KernelQuestion):
    """The best that the table of defaults names of each family, on packed data: n × batch × math × family."""

    param_names = (*grid.WITH_LAYOUT, "family")
    params = grid.axes(
        param_names,
        backend=grid.CUDA,
        n=grid.N,
        batch=(1_000, 16_384),
        nb=(None,),
        math=grid.MATH,
        family=grid.FAMILY,
    )
