"""How many matrices belong into a chunk?"""

from .harness import grid
from .harness.cases import _KernelQuestion


class Chunks(_KernelQuestion, backend=grid.BACKEND, n=grid.N, chunk=grid.CHUNK):
    """Chunk × n."""
