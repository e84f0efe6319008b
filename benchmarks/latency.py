"""How long does one call take, alone, on a GPU?"""

from .harness import _KernelQuestion, grid


class Latency(
    _KernelQuestion,
    names=grid.WITHOUT_CHOICES,
    backend=grid.CUDA,
    n=grid.N,
    batch=grid.BATCH,
    protocol=("single",),
):
    """The library's own schedule and layout, one call after another has ended: n × batch. See floor.py."""
