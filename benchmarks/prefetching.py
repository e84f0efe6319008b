"""Does prefetching the next group of matrices pay?"""

from .harness import grid
from .harness.cases import _KernelQuestion


class Prefetching(_KernelQuestion, backend=grid.CPU, n=grid.N, prefetch=grid.PREFETCH):
    """Prefetch × n."""
