"""Which tile size and which order of evaluation is best for each n?"""

from .harness import grid
from .harness.cases import _KernelQuestion


class Tiles(_KernelQuestion, backend=grid.BACKEND, n=grid.N, nb=grid.NB, looking=grid.LOOKING):
    """Tile size × looking × n."""
