"""How does the time shrink with the number of threads?"""

from .harness import _KernelQuestion, grid


class Threads(_KernelQuestion, backend=grid.CPU, n=grid.N, threads=grid.THREADS):
    """Threads × n; more threads than the machine has are skipped."""
