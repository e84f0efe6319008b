"""What does each layout cost, at batches that are powers of two and at others?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Layouts(_KernelQuestion):
    """Layout × n × batch; chunked at the backend's own chunk."""

    params = grid.axes(backend=grid.BACKEND, n=grid.N, batch=grid.BATCH, layout=grid.LAYOUT)
