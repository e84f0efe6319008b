"""What does one larger matrix cost a single block of threads, as the published method has it, and what cuSOLVER?"""

from __future__ import annotations

from typing import Any

from .harness import grid, library
from .harness.benchmark import Question as _Question
from .harness.benchmark import skipping
from .harness.calls import SAMPLES
from .harness.device import Taken


class SingleMatrix(
    _Question,
    names=("backend", "order", "math", "way", "protocol"),
    backend=grid.CUDA,
    order=(128, 512, 1024),
    math=("fast",),
    way=("shared", "cusolver"),
    protocol=("queued",),
):
    """Order × way, on cold data; seconds of a factorization. Orders are not the grid's n. See floor.py."""

    def device_factor(self, *_: Any) -> Taken:
        with skipping():
            sample = library.single(**{**self.named, "samples": SAMPLES})
        return Taken(sample.seconds, {"ratio": sample.ratio, **library.circumstances(sample)})
