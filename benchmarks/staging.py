"""Does it pay to factor in a chunk that stays in cache, and to store the result past the caches?"""

from .harness import _KernelQuestion, grid


class Staging(_KernelQuestion, backend=grid.CPU, n=grid.N, staged=grid.STAGED):
    """Staged × n."""
