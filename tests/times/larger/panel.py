"""Times of what a panel is made of, by its parameters: a diagonal tile by `ib`, the rows below it by `rows`, updates.

python -m tests.times.larger.panel --out datasets/larger/larger_panel_h200.csv

A tile is alone on the GPU; the rows, 8,192, are those below one tile of one matrix. Parts gemm and syrk are cuBLAS's
updates half way through a matrix of 20,480: of a panel of `nb` columns by all that is left of it, and of all that is
right of such a panel by it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from batchchol.algorithms.device_calls import DeviceCalls
from batchchol.algorithms.level3 import Block
from batchchol.backends.cuda.device import device
from batchchol.errors import optional
from kernelgen import SpecError
from kernelgen.emit.panels.panel import Panel, potf2, trsm

from .ways import ABOUT, DATASETS, DTYPES, largest_ratio, matrices, median, write_rows

COLUMNS = ("part", "dtype", "nb", "ib", "rows", "threads", "us", "gflops", "ratio", *ABOUT)
TILES, INNER, BLOCKS_OF = (32, 64, 96, 128, 160, 192, 224), (4, 8, 16, 32), (128, 256, 512)
ROWS, BELOW, TILES_ABOVE = (16, 32, 64, 96, 128), 8192, (64, 128)
HALF, PANELS = 10_240, (32, 64, 128, 256, 512, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.larger.panel", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=DATASETS / "larger" / "larger_panel_h200.csv", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    write_rows(arguments.out, COLUMNS, rows())


def rows() -> Iterator[dict[str, Any]]:
    """The best number of threads of each, one after another."""
    for dtype in DTYPES:
        yield from updates(dtype)
        for nb, ib in product(TILES, INNER):
            if found := [each for threads in BLOCKS_OF if (each := tile(dtype, nb, ib, threads))]:
                yield min(found, key=lambda each: float(each["us"]))
        for nb, most in product(TILES_ABOVE, ROWS):
            if found := [each for threads in BLOCKS_OF if (each := below(dtype, nb, most, threads))]:
                yield min(found, key=lambda each: float(each["us"]))


def updates(dtype: str) -> Iterator[dict[str, Any]]:
    """By cuBLAS: a panel by all that is left of it, and all that is right of a panel by it."""
    cupy = optional("cupy", "this measurement", "large")
    n = 2 * HALF
    a = cupy.random.random((n, n), cupy.dtype(dtype))
    calls = DeviceCalls(device(), Panel(dtype, "row", 128), a.data.ptr, 0, n, 1)
    for nb in PANELS:
        panel, left, top = Block(HALF, HALF, HALF, nb), Block(HALF, 0, HALF, HALF), Block(HALF, 0, nb, HALF)
        square, before = Block.diagonal(HALF, HALF), Block(HALF, HALF - nb, HALF, nb)
        for part, call, flops in (
            ("gemm", partial(calls.gemm, panel, left, top), 2.0 * HALF * HALF * nb),
            ("syrk", partial(calls.syrk, square, before), float(HALF * HALF * nb)),
        ):
            seconds = median(call, lambda: None)
            named = {"part": part, "dtype": dtype, "nb": nb, "ib": "", "rows": HALF, "threads": ""}
            yield {**named, **_times(seconds, flops), "ratio": ""}


def tile(dtype: str, nb: int, ib: int, threads: int) -> dict[str, Any] | None:
    """One diagonal tile in one launch; None if there is no such kernel."""
    cupy = optional("cupy", "this measurement", "large")
    try:
        how = Panel(dtype, "row", nb, ib=ib, threads=threads)
        potf2(how)
    except SpecError:
        return None
    a = matrices(nb, 1, dtype)
    work, info = cupy.empty_like(a), cupy.empty(1, np.int32)
    calls = DeviceCalls(device(), how, work.data.ptr, info.data.ptr, nb, 1)
    seconds = median(partial(calls.potrf, Block.diagonal(0, nb)), lambda: cupy.copyto(work, a))
    named = {"part": "tile", "dtype": dtype, "nb": nb, "ib": ib, "rows": "", "threads": threads}
    return {**named, **_times(seconds, nb**3 / 3), "ratio": f"{largest_ratio(a, work):.3g}"}


def below(dtype: str, nb: int, most: int, threads: int) -> dict[str, Any] | None:
    """The rows below a tile, `most` of them to a block of threads; None if there is no such kernel."""
    cupy = optional("cupy", "this measurement", "large")
    try:
        how = Panel(dtype, "row", nb, rows=most, row_threads=threads)
        trsm(how)
    except SpecError:
        return None
    n = nb + BELOW
    a = cupy.ones((n, n), dtype)
    a[:nb, :nb] = cupy.eye(nb) + cupy.tri(nb, dtype=dtype) / nb
    calls = DeviceCalls(device(), how, a.data.ptr, 0, n, 1)
    seconds = median(partial(calls.trsm, Block.diagonal(0, nb), Block(nb, 0, BELOW, nb)), lambda: None)
    named = {"part": "rows", "dtype": dtype, "nb": nb, "ib": how.ib, "rows": most, "threads": threads}
    return {**named, **_times(seconds, float(BELOW) * nb**2), "ratio": ""}


def _times(seconds: float, flops: float) -> dict[str, str]:
    return {"us": f"{seconds * 1e6:.5g}", "gflops": f"{flops / seconds / 1e9:.5g}"}


if __name__ == "__main__":
    main()
