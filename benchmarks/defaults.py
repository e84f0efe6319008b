"""How fast is what a user gets who chooses nothing?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Defaults(_KernelQuestion):
    """The library's own schedule and layout: n × batch × dtype, on one thread and on two."""

    param_names = grid.WITHOUT_CHOICES
    params = grid.axes(
        param_names, backend=grid.BACKEND, n=grid.N, batch=grid.BATCH, dtype=grid.DTYPE, threads=(1, 2)
    )
    defaults = True
