"""What `cholesky` takes of arrays on one core of a CPU, beside NumPy, MKL and a copy.

    python -m tests.times.cpu

writes datasets/comparisons/cholesky_xeon.csv (--out FILE for another). A row is a call on one case: the least seconds
of a thread's own time, of calls that take turns, a few of each at a time. `copyto` and `cholesky, out=` write to
memory that has its pages, `copy` and `cholesky` return new arrays; `factor` is that of packed batches, `out=` as
well.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import batchchol
from batchchol import get_backend
from batchchol.batches.host_memory import aligned_empty
from batchchol.measure.provenance import about, installed

OUT = Path(__file__).parents[2] / "datasets" / "comparisons" / "cholesky_xeon.csv"
ORDERS, BATCHES = (4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64), (16_384, 1024)
COLUMNS = (
    *("library", "n", "batch", "dtype", "threads", "seconds", "turns"),
    *("cpu", "compiler", "packages", "version", "commit", "date"),
)
# Calls at a time, after one that is not counted: the caches are those of a loop. Of those that take longer, one.
CALLS, SLOW_MICROSECONDS = 3, 1e5
TURNS = 3

Call = Callable[[], Any]


def matrices(n: int, batch: int, dtype: str) -> Any:
    """Diagonally dominant ones."""
    r = np.random.default_rng(0).random((batch, n, n), np.float32)
    a = aligned_empty(r.shape, dtype, "matrices")
    a[:] = (r + r.swapaxes(1, 2)) / 2 + n * np.eye(n)
    return a


def calls_on(a: Any) -> dict[str, tuple[Call, Call]]:
    """The calls on matrices, each with what is done before it and not counted."""
    factors, copied, batch = np.zeros_like(a), np.zeros_like(a), batchchol.Batch.from_dense(a)
    packed = batch.like("lower")
    calls: dict[str, Call] = {
        "batchchol.cholesky, out=": lambda: batchchol.cholesky(a, out=factors),
        "batchchol.cholesky": lambda: batchchol.cholesky(a),
        "batchchol.factor": lambda: batchchol.factor(batch, out=packed),
        "numpy.copyto": lambda: np.copyto(copied, a),
        "numpy.copy": a.copy,
        "numpy.linalg.cholesky": lambda: np.linalg.cholesky(a),
    }
    prepared = {name: (call, lambda: None) for name, call in calls.items()}
    if (by_mkl := _mkl(copied)) is not None:
        prepared["mkl potrf_batch_strided"] = by_mkl, partial(np.copyto, copied, a)
    return prepared


def _mkl(a: Any) -> Call | None:
    """MKL's call that factors matrices in place, by one thread; None without MKL."""
    from batchchol.compare.peers import mkl

    try:
        library = mkl._library()
    except ImportError:
        return None
    count, n, _ = a.shape
    function = getattr(library, ("s" if a.dtype == np.float32 else "d") + "potrf_batch_strided")
    info = np.zeros(count, np.int32)
    order, size, batch = (ctypes.byref(ctypes.c_int(each)) for each in (n, n * n, count))
    places = ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(info.ctypes.data)
    return lambda: (function(b"U", order, places[0], order, size, batch, places[1]), info)


def least_microseconds(calls: dict[str, tuple[Call, Call]], seconds: float) -> tuple[dict[str, float], int]:
    """The least that each call took, and how many turns there were."""
    least, turns, end = dict.fromkeys(calls, np.inf), 0, time.perf_counter() + seconds
    while turns < TURNS or time.perf_counter() < end:
        turns += 1
        for name, (call, prepare) in calls.items():
            slow = turns > 1 and least[name] > SLOW_MICROSECONDS
            taken = [_microseconds(call, prepare) for _ in range(1 if slow else CALLS + 1)]
            least[name] = min(least[name], *(taken[1:] or taken))
    return least, turns


def _microseconds(call: Call, prepare: Call) -> float:
    prepare()
    begin = time.thread_time()
    result = call()
    took = time.thread_time() - begin
    # A new result's memory is given back between calls.
    del result
    return took * 1e6


def main() -> None:
    """Measure the cases, print them and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case")
    parser.add_argument("--batches", type=lambda text: [*map(int, text.split(","))], default=BATCHES)
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["float32", "float64"])
    given = parser.parse_args()
    os.environ["BATCHCHOL_THREADS"] = "1"
    backend = get_backend("cpu")
    described = about(backend) | {name: backend.device()[name] for name in ("cpu", "compiler")}
    described["packages"] = ", ".join(f"{name} {installed(name)}" for name in ("numpy", "mkl") if installed(name))
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for dtype, batch, n in ((d, b, n) for d in given.dtypes for b in given.batches for n in ORDERS):
            least, turns = least_microseconds(calls_on(matrices(n, batch, dtype)), given.seconds)
            case = described | {"n": n, "batch": batch, "dtype": dtype, "threads": 1, "turns": turns}
            for name, us in least.items():
                writer.writerow(case | {"library": name, "seconds": f"{us / 1e6:.4g}"})
            file.flush()
            print(dtype, batch, n, *(f"{name} {us:.1f};" for name, us in least.items()), flush=True)


if __name__ == "__main__":
    main()
