"""How does the time shrink with the number of threads?"""

from __future__ import annotations

from typing import Any

from . import grid
from .cases import case
from .question import Question as _Question


class Threads(_Question):
    """Threads × n; more threads than the machine has are skipped."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, threads=grid.THREADS)

    def setup(self, *values: Any) -> None:
        self.case = case(grid.Point(**self.selected(*values)))

    def device_factor(self, *_: Any) -> list[float]:
        return self.case.seconds_per_matrix()
