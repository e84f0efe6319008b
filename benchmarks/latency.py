"""How long does one call take, alone, on a GPU?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Latency(_KernelQuestion):
    """The library's own schedule and layout, one call after another has ended: n × batch. See floor.py."""

    param_names = grid.WITHOUT_CHOICES
    params = grid.axes(param_names, backend=grid.CUDA, n=grid.N, batch=grid.BATCH, protocol=("single",))
    defaults = True
