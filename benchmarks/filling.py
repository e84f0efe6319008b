"""How fast are the data sets made, in place, on the device that uses them?"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from . import grid, library
from .calls import Call, buffers, timed
from .cases import backend_of, layout_of
from .device import Taken
from .question import Question as _Question
from .question import skipping


class Filling(_Question):
    """Recipe × n, straight into chunks, on all cores."""

    param_names = ("backend", "n", "batch", "dtype", "chunk", "protocol", "recipe")
    params = grid.axes(param_names, backend=grid.BACKEND, n=grid.N, batch=(16_384,), recipe=grid.RECIPE)

    def setup(self, *values: Any) -> None:
        named = self.selected(*values)
        recipe = named.pop("recipe")
        self.point = grid.Point(**named)
        self.calls = fills(self.point, recipe)

    def device_fill(self, *_: Any) -> Taken:
        return timed(backend_of(self.point), self.calls, self.point.batch, self.point.protocol)


@cache
def fills(point: grid.Point, recipe: str) -> list[Call]:
    """Calls that fill buffers, which are taken in turns."""
    with skipping():
        backend = backend_of(point)
        layout = layout_of(point, backend)
        batches = [
            library.empty(backend, point.n, point.batch, layout, point.dtype)
            for _ in range(buffers(backend, point.matrix_bytes))
        ]
    return [partial(library.fill, backend, batch, recipe) for batch in batches]
