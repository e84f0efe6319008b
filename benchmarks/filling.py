"""How fast are the data sets made, in place, on the device that uses them?"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from .harness import Call, Question, Taken, backend_of, buffers, grid, layout_of, library, skipping, timed


class Filling(
    Question,
    names=("backend", "n", "batch", "dtype", "chunk", "protocol"),
    backend=grid.BACKEND,
    n=grid.N,
    batch=(16_384,),
    recipe=grid.RECIPE,
):
    """Recipe × n, straight into chunks, on all cores."""

    def prepare(self) -> None:
        self.calls = fills(self.point, self.named["recipe"])

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
