"""What launching takes the host: by PyCUDA and by the driver, of a kernel alone and of the calls that users make.

On a machine with a GPU, from the root of the repository, in less than a minute:

    python -m tests.times.launches

writes datasets/calls/launch_host_h200.csv (--out FILE for another). Microseconds by the host's clock, medians of
samples of many calls: `host_us` until a call returns, the GPU idle before each sample; `wall_us` of a call when many
follow each other, until the GPU is done; `single_us` by the GPU's clock, from before one call until its end. "pycuda"
is what the library does with single calls, "driver" what it did before with all of them, and does with queues.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from batchchol import cho_solve, cholesky_ex, default_spec, factor, get_backend, solve_ex
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.defaults.request import Request
from batchchol.defaults.rules.fused import two_kernels
from batchchol.measure.provenance import about
from kernelgen import Layout, Problem

OUT = Path(__file__).parents[2] / "datasets" / "calls" / "launch_host_h200.csv"
CASE = ("n", "batch", "what", "way", "kernels")
TIMES = ("host_us", "host_spread", "wall_us", "wall_spread", "single_us", "single_spread")
COLUMNS = (*CASE, *TIMES, "gpu", "driver", "toolkit", "cpu", "compiler", "version", "commit", "date")
CASES = tuple((n, batch) for n in (8, 32, 64) for batch in (1024, 16_384))
SAMPLES, CALLS, HOST_CALLS = 21, 100, 16


def calls(n: int, batch: int) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """What is timed, of how many kernels each: a launch, `factor`, and calls with arrays on the GPU."""
    backend = get_backend("cuda")
    a = backend.empty(n, batch)
    backend.fill(a, "diagonally_dominant")
    where = {"target": "cuda", "arch": backend.architecture, "device": backend.model, "batch": batch}
    spec = default_spec(n, chunk=a.layout.chunk, **where)
    kernel, out, info = backend.kernel(spec), a.copy(), backend.info(a, spec)
    dense = a.to_dense()
    packed = backend.array_layout(n, batch).kind != "canonical"
    yield "launch", 1, partial(kernel, a, out, info, threads=1)
    yield "factor", 1, partial(factor, a, out=out)
    yield "cholesky_ex", 3 if packed else 1, partial(cholesky_ex, dense)
    b = memory.to_device(np.ones((batch, n), np.float32), "right-hand sides")
    asked = Request(Problem(n, op="posv"), backend.target, batch=batch, arch=backend.architecture)
    two = two_kernels(asked.on(Layout.canonical()))
    yield "solve_ex", 2 if two else 1, partial(solve_ex, dense, b)
    yield "cho_solve", 1, partial(cho_solve, cholesky_ex(dense).L, b)


def microseconds(call: Callable[[], Any], count: int, *, wait: bool) -> tuple[float, float]:
    """The median of what a call takes in samples of that many, and the interquartile range over it."""
    gpu, taken = device(), []
    for _ in range(SAMPLES):
        gpu.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        if wait:
            gpu.synchronize()
        taken.append((time.perf_counter() - begin) / count * 1e6)
    gpu.synchronize()
    return summary(taken)


def summary(taken: list[float]) -> tuple[float, float]:
    """Median and interquartile range over the median."""
    low, median, high = np.percentile(taken, [25, 50, 75])
    return float(median), float((high - low) / median)


def single(call: Callable[[], Any], *, by_driver: bool) -> tuple[float, float]:
    """The same by the GPU's clock, of single calls."""
    backend, gpu = get_backend("cuda"), device()

    def launch() -> None:
        with gpu.queueing() if by_driver else nullcontext():
            call()

    return summary([each * 1e6 for each in backend.seconds([launch], samples=SAMPLES, protocol="single")])


def measure(n: int, batch: int) -> Iterator[dict[str, Any]]:
    """The rows of a case: both ways in turn, so that a busy machine is busy for both."""
    for what, kernels, call in calls(n, batch):
        for way in ("pycuda", "driver"):
            with device().queueing() if way == "driver" else nullcontext():
                for _ in range(20):
                    call()
                host = microseconds(call, HOST_CALLS, wait=False)
                wall = microseconds(call, CALLS, wait=True)
            alone = single(call, by_driver=way == "driver")
            named = dict(zip(TIMES, (round(each, 4) for each in (*host, *wall, *alone)), strict=True))
            yield {"n": n, "batch": batch, "what": what, "way": way, "kernels": kernels} | named


def main() -> None:
    """Measure all cases, print them and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    machine = about(get_backend("cuda"))
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for case in CASES:
            for row in measure(*case):
                writer.writerow(row | machine)
                print(*(f"{name}={row[name]}" for name in (*CASE, *TIMES)), flush=True)


if __name__ == "__main__":
    main()
