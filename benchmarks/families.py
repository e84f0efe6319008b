"""Who should work on a matrix: a thread, a block with registers, or a block with shared memory?"""

from .harness import _KernelQuestion, grid


class Families(
    _KernelQuestion,
    names=grid.WITH_LAYOUT,
    backend=grid.CUDA,
    n=grid.N,
    batch=(1_000, 16_384),
    nb=(None,),
    math=grid.MATH,
    family=grid.FAMILY,
):
    """The best that the table of defaults names of each family, on packed data: n × batch × math × family."""
