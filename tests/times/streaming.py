"""Batches of the host through a GPU: how near they come to the rate of the link, and what each way of memory takes.

In about a minute, from the root of the repository, on a machine with a GPU:

    python -m tests.times.streaming

writes datasets/calls/streaming_h200.csv (--out FILE for another). `seconds` are medians of `cholesky` on `bytes` of
matrices of the host, with `out=`: from pageable memory, from pinned memory, and from and to files in the page cache.
Beside them: the same bytes copied by the link alone to the GPU, from it, and both at once, from pinned memory; and
copied by the host's cores.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol import cholesky, get_backend
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.arrays import streaming
from batchchol.backends.cuda.device import device
from batchchol.measure.provenance import about

OUT = Path(__file__).parents[2] / "datasets" / "calls" / "streaming_h200.csv"
ORDERS = (8, 32, 64, 128)
BYTES, RUNS = 4 << 30, 5
COLUMNS = (
    *("n", "dtype", "way", "slice_bytes", "slots", "bytes", "seconds", "gbytes_per_second"),
    *("gpu", "cpu", "driver", "toolkit", "commit", "date"),
)


def seconds(work: Callable[[], object]) -> float:
    """The median of a few runs, after one that warms up."""
    taken = []
    for _ in range(RUNS + 1):
        begin = perf_counter()
        work()
        taken.append(perf_counter() - begin)
    return median(taken[1:])


def pinned(shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of pinned memory."""
    with device().current():
        return device().pycuda.pagelocked_empty(shape, np.float32)  # type: ignore[no-any-return]


def filled(a: NDArray[Any]) -> NDArray[Any]:
    """The array, with diagonally dominant matrices."""
    n = a.shape[-1]
    pattern = np.eye(n, dtype=a.dtype) * n + np.float32(0.5)
    a[...] = pattern
    return a


def links(whole: NDArray[Any], other: NDArray[Any]) -> Iterator[tuple[str, float]]:
    """The link alone, and the host's cores alone."""
    gpu, room, back = device(), memory.room(whole.nbytes, "copies"), memory.room(whole.nbytes, "copies")
    with gpu.current():
        there, here = gpu.pycuda.Stream(), gpu.pycuda.Stream()

        def to() -> None:
            gpu.pycuda.memcpy_htod_async(int(room), whole, there)
            there.synchronize()

        def fro() -> None:
            gpu.pycuda.memcpy_dtoh_async(other, int(back), here)
            here.synchronize()

        def both() -> None:
            gpu.pycuda.memcpy_htod_async(int(room), whole, there)
            gpu.pycuda.memcpy_dtoh_async(other, int(back), here)
            there.synchronize()
            here.synchronize()

        yield "link, to the GPU", seconds(to)
        yield "link, from the GPU", seconds(fro)
        yield "link, both at once", seconds(both)
        yield "host's cores", seconds(lambda: streaming.copy(whole, other))


def calls(n: int, folder: Path) -> Iterator[tuple[str, float]]:
    """`cholesky` by the ways of memory."""
    shape = (BYTES // (4 * n * n), n, n)

    def mapped() -> NDArray[Any]:
        return np.memmap(tempfile.TemporaryFile(dir=folder), np.float32, "w+", shape=shape)

    ways: dict[str, Callable[[], NDArray[Any]]] = {
        "pageable memory": lambda: np.empty(shape, np.float32),
        "pinned memory": lambda: pinned(shape),
        "files in the page cache": mapped,
    }
    for way, make in ways.items():
        arrays = filled(make()), filled(make())
        yield way, seconds(partial(cholesky, arrays[0], backend="cuda", out=arrays[1]))


def rows(orders: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """The lines of the file, without where they come from."""
    whole, other = pinned((BYTES // 4,)), pinned((BYTES // 4,))
    whole[:], other[:] = 1, 1
    for way, taken in links(whole, other):
        yield {"way": way, "seconds": taken}
    del whole, other
    used = {"dtype": "float32", "slice_bytes": streaming.SLICE_BYTES, "slots": streaming.SLOTS}
    with tempfile.TemporaryDirectory() as folder:
        for n in orders:
            for way, taken in calls(n, Path(folder)):
                yield {"n": n, "way": way, "seconds": taken, **used}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.streaming", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--orders", type=int, nargs="+", default=ORDERS)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    said = {name: value for name, value in about(get_backend("cuda")).items() if name in COLUMNS}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for each in rows(given.orders):
            rate = f"{BYTES / each['seconds'] / 1e9:.2f}"
            print(each.get("n", ""), each["way"], f"{each['seconds']:.4f} s", f"{rate} GB/s", flush=True)
            shown = {**each, "seconds": f"{each['seconds']:.4g}"}
            writer.writerow({**said, **shown, "bytes": BYTES, "gbytes_per_second": rate})
            stream.flush()


if __name__ == "__main__":
    main()
