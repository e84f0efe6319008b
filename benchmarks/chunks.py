"""How many matrices belong into a chunk?"""

from __future__ import annotations

from typing import Any

from . import grid
from .cases import case
from .question import Question as _Question


class Chunks(_Question):
    """Chunk × n."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, chunk=grid.CHUNK)

    def setup(self, *values: Any) -> None:
        self.case = case(grid.Point(**self.selected(*values)))

    def device_factor(self, *_: Any) -> list[float]:
        return self.case.seconds_per_matrix()
