"""What do correctly rounded square roots cost, in each precision?"""

from .harness import _KernelQuestion, grid


class Mathematics(_KernelQuestion, backend=grid.BACKEND, n=grid.N, dtype=grid.DTYPE, math=grid.MATH):
    """Math × dtype × n."""
