"""Does it pay to factor in a chunk that stays in cache, and to store the result past the caches?"""

from __future__ import annotations

from typing import Any

from . import grid
from .cases import case
from .question import Question as _Question


class Staging(_Question):
    """Staged × n."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, staged=grid.STAGED)

    def setup(self, *values: Any) -> None:
        self.case = case(grid.Point(**self.selected(*values)))

    def device_factor(self, *_: Any) -> list[float]:
        return self.case.seconds_per_matrix()
