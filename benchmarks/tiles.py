"""Which tile size and which order of evaluation is best for each n?"""

from .harness import _KernelQuestion, grid


class Tiles(_KernelQuestion, backend=grid.BACKEND, n=grid.N, nb=grid.NB, looking=grid.LOOKING):
    """Tile size × looking × n."""
