"""How should a larger matrix be cut, looked at and worked on, alone and in batches?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .harness import SAMPLES, Question, Taken, grid, library, skipping

# `looking` with its look-ahead.
AHEAD = "right, ahead"


def _apart(named: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a case, look-ahead apart from `looking` where there is that."""
    if "looking" not in named:
        return dict(named)
    looking = str(named["looking"])
    return {**named, "ahead": looking == AHEAD, "looking": looking.partition(",")[0]}


class _Larger(Question):
    """Seconds of a factorization, out of place, on cold data. Orders are not the grid's n."""

    def device_factor(self, *_: Any) -> Taken:
        with skipping():
            sample = library.larger(**{**_apart(self.named), "samples": SAMPLES})
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


class LargerBorders(
    Question,
    names=("backend", "order", "batch", "dtype", "nb", "border"),
    backend=grid.CUDA,
    order=(257, 385, 513),
    batch=(1024,),
    dtype=("float32", "float64"),
    nb=(48, 64),
    border=(False, True),
):
    """Order × type × order of tiles × whether the row behind whole ones has a kernel of its own, of many matrices."""

    def device_factor(self, *_: Any) -> Taken:
        named = dict(self.named)
        if not named["border"]:
            del named["border"]
        resident = 4 if named["dtype"] == "float32" else 2
        with skipping():
            how = {"ib": 8, "lb": 8, "threads": 2 * named["nb"], "resident": resident, "blocks": 3}
            sample = library.fused(**named, **how, samples=SAMPLES)
        return Taken(sample.seconds, {"ratio": sample.ratio, **library.circumstances(sample)})


class LargerPanels(
    Question,
    names=("backend", "order", "dtype", "looking", "columns", "width", "graph"),
    backend=grid.CUDA,
    order=(4096, 16_384),
    dtype=("float64",),
    looking=("left", AHEAD),
    columns=(1024, 2048),
    width=(256, 512, 1024),
    graph=(False, True),
):
    """Order × looking × columns of a panel × of a launch × whether a graph launches all of it."""

    def device_factor(self, *_: Any) -> Taken:
        with skipping():
            sample = library.panels(**{**_apart(self.named), "samples": SAMPLES})
        return Taken(sample.seconds, {"ratio": sample.ratio, **library.circumstances(sample)})
