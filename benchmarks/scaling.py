"""How does the time shrink with the number of threads?"""

from .harness import grid
from .harness.cases import _KernelQuestion


class Threads(_KernelQuestion, backend=grid.CPU, n=grid.N, threads=grid.THREADS):
    """Threads × n; more threads than the machine has are skipped."""
