"""How many threads belong into a block?"""

from .harness import grid
from .harness.cases import _KernelQuestion


class Blocks(_KernelQuestion, backend=grid.CUDA, n=grid.N, block=grid.BLOCK):
    """Threads of a block × n."""
