"""How many threads belong in a block?"""

from .harness import _KernelQuestion, grid


class Blocks(_KernelQuestion, backend=grid.CUDA, n=grid.N, block=grid.BLOCK):
    """Threads of a block × n."""
