"""How should a larger matrix be cut, looked at and worked on, alone and in batches?"""

from __future__ import annotations

from typing import Any

from .harness import SAMPLES, Question, Taken, grid, library, skipping

# `looking` with its look-ahead.
AHEAD = "right, ahead"


class _Larger(Question):
    """Seconds of a factorization, out of place, on cold data. Orders are not the grid's n."""

    def device_factor(self, *_: Any) -> Taken:
        named = dict(self.named)
        if "looking" in named:
            named["ahead"] = named["looking"] == AHEAD
            named["looking"] = str(named["looking"]).partition(",")[0]
        with skipping():
            sample = library.larger(**{**named, "samples": SAMPLES})
        return Taken(sample.seconds, {"ratio": sample.ratio, **library.circumstances(sample)})


class LargerMatrices(
    _Larger,
    names=("backend", "order", "batch", "dtype", "looking", "nb"),
    backend=grid.CUDA,
    order=(512, 8192),
    batch=(1,),
    dtype=("float32",),
    looking=("left", "right", AHEAD),
    nb=(128, 512),
):
    """Order × looking × columns of a panel."""


class LargerTiles(
    _Larger,
    names=("backend", "order", "batch", "dtype", "ib", "rows", "threads"),
    backend=grid.CUDA,
    order=(256,),
    batch=(1024,),
    dtype=("float32",),
    ib=(8, 16),
    rows=(16, 64),
    threads=(128, 256),
):
    """Order × batch × what a tile and the rows below it are worked on by."""


class LargerFused(
    Question,
    names=("backend", "order", "batch", "dtype", "update", "nb", "ib", "lb", "blocks"),
    backend=grid.CUDA,
    order=(512, 4096),
    batch=(1,),
    dtype=("float32",),
    update=("fma", "tensor"),
    nb=(64,),
    ib=(16, 32),
    lb=(16, 32),
    blocks=(32, 132),
):
    """Order × what updates tiles × columns factored and updated by at a time × blocks of threads, in one launch."""

    def device_factor(self, *_: Any) -> Taken:
        with skipping():
            sample = library.fused(**{**self.named, "samples": SAMPLES})
        return Taken(sample.seconds, {"ratio": sample.ratio, **library.circumstances(sample)})
