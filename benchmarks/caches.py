"""Does it pay to give more of the on-chip memory to the cache, or to shared memory?"""

from .harness import _KernelQuestion, grid


class Caches(_KernelQuestion, backend=grid.CUDA, n=grid.N, cache=grid.CACHE):
    """Preferred split × n."""
