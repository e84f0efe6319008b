"""What does each layout cost, at batches that are powers of two and at others?"""

from __future__ import annotations

from typing import Any

from . import grid
from .cases import case
from .question import Question as _Question


class Layouts(_Question):
    """Layout × n × batch; chunked at one chunk, the others without."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, batch=grid.BATCH, layout=grid.LAYOUT, chunk=(None, grid.SIMD))

    def setup(self, *values: Any) -> None:
        self.case = case(grid.Point(**self.selected(*values)))

    def device_factor(self, *_: Any) -> list[float]:
        return self.case.seconds_per_matrix()
