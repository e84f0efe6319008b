"""What does the way from NumPy's layout to the kernels' and back cost? It is memory traffic and nothing else."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .harness import Call, Question, Taken, backend_of, buffers, grid, layout_of, library, skipping, timed


class Copies(
    Question,
    names=("backend", "n", "batch", "dtype", "chunk", "protocol"),
    backend=grid.BACKEND,
    n=grid.N,
    batch=(100_000, 1_048_576),
):
    """All elements of all matrices, from one array to another that is there already, on all cores: n × batch."""

    def prepare(self) -> None:
        self.pack, self.unpack = copies(self.point)

    def device_pack(self, *_: Any) -> Taken:
        return timed(backend_of(self.point), self.pack, self.point.batch, self.point.protocol)

    def device_unpack(self, *_: Any) -> Taken:
        return timed(backend_of(self.point), self.unpack, self.point.batch, self.point.protocol)


@cache
def copies(point: grid.Point) -> tuple[list[Call], list[Call]]:
    """Calls that pack and calls that unpack, on buffers that are taken in turns."""
    with skipping():
        backend = backend_of(point)
        layout = layout_of(point, backend)
        pairs = []
        for _ in range(buffers(backend, 2 * point.matrix_bytes)):
            dense = library.empty(backend, point.n, point.batch, library.Layout.canonical("row"), point.dtype)
            packed = library.empty(backend, point.n, point.batch, layout, point.dtype)
            if isinstance(dense.data, np.ndarray):
                # So that no page is touched for the first time while the clock runs.
                dense.data[...] = 0
            pairs.append(library.copies(dense, packed))
            pairs[-1][0]()
    pack, unpack = zip(*pairs, strict=True)
    return list(pack), list(unpack)
