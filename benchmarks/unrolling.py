"""Does straight-line code win anywhere?"""

from .harness import grid
from .harness.cases import _KernelQuestion


class Unrolling(_KernelQuestion, backend=grid.BACKEND, n=grid.N, unroll=grid.UNROLL):
    """Unroll × n; past its operation budget, full is skipped."""
