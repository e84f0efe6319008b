"""How many matrices belong in a chunk?"""

from .harness import _KernelQuestion, grid


class Chunks(_KernelQuestion, backend=grid.BACKEND, n=grid.N, chunk=grid.CHUNK):
    """Chunk × n."""
