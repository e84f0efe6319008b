"""What does each layout cost, at batches that are powers of two and at others?"""

from .harness import _KernelQuestion, grid


class Layouts(_KernelQuestion, backend=grid.BACKEND, n=grid.N, batch=grid.BATCH, layout=grid.LAYOUT):
    """Layout × n × batch; chunked at the backend's own chunk."""
