"""Does it pay to compile the chunk into the kernel?"""

from .harness import _KernelQuestion, grid


class Strides(_KernelQuestion, backend=grid.CUDA, n=grid.N, stride=grid.STRIDE):
    """Stride, given at run time or a constant, × n."""
