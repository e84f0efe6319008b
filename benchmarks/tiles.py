"""Which tile size and which order of evaluation is best for each n?"""

from __future__ import annotations

from typing import Any

from . import grid
from .cases import case
from .question import Question as _Question


class Tiles(_Question):
    """Tile size × looking × n."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, nb=grid.NB, looking=grid.LOOKING)

    def setup(self, *values: Any) -> None:
        self.case = case(grid.Point(**self.selected(*values)))

    def device_factor(self, *_: Any) -> list[float]:
        return self.case.seconds_per_matrix()
