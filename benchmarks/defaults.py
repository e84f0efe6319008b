"""How fast are the defaults?"""

from .harness import _KernelQuestion, grid


class Defaults(
    _KernelQuestion,
    names=grid.WITHOUT_CHOICES,
    backend=grid.BACKEND,
    n=grid.N,
    batch=grid.BATCH,
    dtype=grid.DTYPE,
    threads=(1, 2),
):
    """The library's own schedule and layout: n × batch × dtype, on one thread and on two."""
