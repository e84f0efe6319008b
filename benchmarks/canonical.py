"""What does it cost to factor arrays as they are, one matrix after another, beside packed data?"""

from __future__ import annotations

from . import grid
from .cases import _KernelQuestion


class Canonical(_KernelQuestion):
    """The library's own schedule for each layout: n × batch × layout. See copies.py for packing."""

    param_names = grid.WITH_LAYOUT
    params = grid.axes(
        param_names,
        backend=grid.CUDA,
        n=grid.N,
        batch=(1_000, 16_384, 1_048_576),
        layout=("canonical", "chunked"),
        nb=(None,),
    )
