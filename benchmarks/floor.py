"""What does a launch cost that does nothing? No call can be shorter."""

from __future__ import annotations

from typing import Any

from . import grid, library
from .calls import timed
from .cases import backend_of
from .device import Taken
from .question import Question as _Question


class Floor(_Question):
    """An empty kernel, by both protocols; seconds per launch."""

    param_names = ("backend", "protocol")
    params = grid.axes(param_names, backend=grid.CUDA, protocol=grid.PROTOCOL)

    def setup(self, *values: Any) -> None:
        self.point = grid.Point(**self.selected(*values))
        self.backend = backend_of(self.point)

    def device_nothing(self, *_: Any) -> Taken:
        return timed(self.backend, [library.nothing()], 1, self.point.protocol)
