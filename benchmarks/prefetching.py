"""Does prefetching the next group of matrices pay?"""

from .harness import _KernelQuestion, grid


class Prefetching(_KernelQuestion, backend=grid.CPU, n=grid.N, prefetch=grid.PREFETCH):
    """Prefetch × n."""
