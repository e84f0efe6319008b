"""How fast is the older of the published methods, with its tiles in shared memory?"""

from .harness import _KernelQuestion, grid


class Shared(
    _KernelQuestion,
    names=grid.WITH_LAYOUT,
    backend=grid.CUDA,
    n=(8, 16, 17, 32, 64, 128),
    layout=("interleaved", "chunked"),
    nb=grid.SHARED_NB,
    family=("shared",),
    looking=grid.LOOKING,
):
    """As many matrices in a block as its threads suffice for: n × tile size × order of evaluation × layout."""
