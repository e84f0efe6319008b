"""Does straight-line code win anywhere?"""

from .harness import _KernelQuestion, grid


class Unrolling(_KernelQuestion, backend=grid.BACKEND, n=grid.N, unroll=grid.UNROLL):
    """Unroll × n; past its operation budget, full is skipped."""
