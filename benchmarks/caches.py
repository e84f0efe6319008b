"""Does it pay to give more of the on-chip memory to the cache, or to shared memory?"""

from .harness import grid
from .harness.cases import _KernelQuestion


class Caches(_KernelQuestion, backend=grid.CUDA, n=grid.N, cache=grid.CACHE):
    """Preferred split × n."""
