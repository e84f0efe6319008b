"""Does it pay to compile the chunk into the kernel?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Strides(_KernelQuestion):
    """Stride, given at run time or a constant, × n."""

    params = grid.axes(backend=grid.CUDA, n=grid.N, stride=grid.STRIDE)
