"""What does one larger matrix cost a single block of threads, as the published method has it, and what cuSOLVER?"""

from __future__ import annotations

from typing import Any

from .harness import SAMPLES, Question, Taken, grid, library, skipping


class SingleMatrix(
    Question,
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
