"""How does the time shrink with the number of threads?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Threads(_KernelQuestion):
    """Threads × n; more threads than the machine has are skipped."""

    params = grid.axes(backend=grid.CPU, n=grid.N, threads=grid.THREADS)
