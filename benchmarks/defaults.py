"""How fast is what a user gets who chooses nothing?"""

from __future__ import annotations

from typing import Any

from . import grid
from .cases import _KernelQuestion, case

CHOSEN_BY_THE_LIBRARY = ("layout", "chunk", "nb", "looking", "unroll", "prefetch", "staged")


class Defaults(_KernelQuestion):
    """The library's own schedule and layout: n × batch × dtype, on one thread and on two."""

    param_names = tuple(name for name in grid.AXES if name not in CHOSEN_BY_THE_LIBRARY)
    params = grid.axes(
        param_names, backend=grid.BACKEND, n=grid.N, batch=grid.BATCH, dtype=grid.DTYPE, threads=(1, 2)
    )

    def setup(self, *values: Any) -> None:
        self.case = case(grid.Point(**self.selected(*values)), defaults=True)
