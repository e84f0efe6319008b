"""What does one larger matrix cost a single block of threads, as the published method has it, and what cuSOLVER?"""

from __future__ import annotations

from typing import Any

from . import grid, library
from .calls import SAMPLES
from .device import Taken
from .question import Question as _Question
from .question import skipping


class SingleMatrix(_Question):
    """Order × way, on cold data; seconds of a factorization. Orders are not the grid's n. See floor.py."""

    param_names = ("backend", "order", "math", "way", "protocol")
    params = grid.axes(
        param_names,
        backend=grid.CUDA,
        order=(128, 512, 1024),
        math=("fast",),
        way=("shared", "cusolver"),
        protocol=("queued",),
    )

    def setup(self, *values: Any) -> None:
        self.named = self.selected(*values)

    def device_factor(self, *_: Any) -> Taken:
        with skipping():
            sample = library.single(**{**self.named, "samples": SAMPLES})
        return Taken(sample.seconds, {"ratio": sample.ratio, **library.circumstances(sample)})
