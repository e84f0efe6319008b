"""Does it pay to give a thread all the registers that its straight-line code can use?"""

from .harness import _KernelQuestion, grid


class Residence(
    _KernelQuestion,
    backend=grid.CUDA,
    n=tuple(n for n in grid.N if n <= 24),
    batch=grid.BATCH,
    unroll=("full",),
    math=("fast",),
    block=(64,),
    stride=(32,),
    blocks=grid.BLOCKS,
):
    """Blocks for which a multiprocessor must have registers, one or the compiler's own choice, × n × batch."""
