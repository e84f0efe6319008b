"""What does it cost to factor arrays as they are, one matrix after another, beside packed data?"""

from .harness import _KernelQuestion, grid


class Canonical(
    _KernelQuestion,
    names=grid.WITH_LAYOUT,
    backend=grid.CUDA,
    n=grid.N,
    batch=(1_000, 16_384, 1_048_576),
    layout=("canonical", "chunked"),
    nb=(None,),
):
    """The library's own schedule for each layout: n × batch × layout. See copies.py for packing."""
