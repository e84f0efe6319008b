"""What do correctly rounded square roots cost, in each precision?"""

from __future__ import annotations

from typing import Any

from . import grid
from .cases import case
from .question import Question as _Question


class Mathematics(_Question):
    """Math × dtype × n."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, dtype=grid.DTYPE, math=grid.MATH)

    def setup(self, *values: Any) -> None:
        self.case = case(grid.Point(**self.selected(*values)))

    def device_factor(self, *_: Any) -> list[float]:
        return self.case.seconds_per_matrix()
