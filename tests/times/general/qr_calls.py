"""What whole calls of `qr` take on a GPU's arrays, beside PyTorch's and JAX's own: 270,000 matrices of 3 x 3.

From the root of the repository, with PyTorch and CuPy, and JAX if it is there:

    python -m tests.times.general.qr_calls

writes datasets/calls/qr_calls_h200.csv (--out FILE for another). The calls take turns, several of each back to back:
microseconds of one until it returns, `host`, and until the GPU is done, `wall`: medians, and the least. PyTorch's
`qr`, which calls its solver for one matrix after the other, is called once, last.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import batchchol
from batchchol import get_backend
from batchchol.measure.provenance import about, installed

OUT = Path(__file__).parents[3] / "datasets" / "calls" / "qr_calls_h200.csv"
N, BATCH, SAMPLES, CALLS = 3, 270_000, 21, 50
COLUMNS = (
    *("n", "batch", "dtype", "call", "samples", "host_us", "wall_us", "wall_least_us"),
    *("gpu", "driver", "toolkit", "library", "version", "commit", "date"),
)

Call = Callable[[], Any]


def calls() -> dict[tuple[str, str], Call]:
    """What is called, by the library and the name."""
    import cupy
    import torch

    host = np.random.default_rng(3).standard_normal((BATCH, N, N)).astype(np.float32)
    tensor, array = torch.from_numpy(host).cuda(), cupy.asarray(host)
    found: dict[tuple[str, str], Call] = {}
    for library, a in (("torch", tensor), ("cupy-cuda13x", array)):
        found[library, "batchchol.qr"] = lambda a=a: batchchol.qr(a)
        found[library, "batchchol.qr, r"] = lambda a=a: batchchol.qr(a, "r")
        found[library, "batchchol.qr, raw"] = lambda a=a: batchchol.qr(a, "raw")
    found["torch", "torch.geqrf"] = lambda: torch.geqrf(tensor)
    if installed("jax"):
        import jax

        given, compiled = jax.device_put(host), jax.jit(jax.numpy.linalg.qr)
        found["jax", "jax.numpy.linalg.qr"] = lambda: jax.block_until_ready(compiled(given))
    for call in found.values():
        call()
    _check(tensor)
    found["torch", "torch.linalg.qr"] = lambda: torch.linalg.qr(tensor)
    torch.linalg.qr(tensor[:64].clone())
    return found


def _check(a: Any) -> None:
    """Fail unless the factors are right."""
    q, r = batchchol.qr(a)
    for off in (q @ r - a, q.mT @ q - a.new_tensor(np.eye(N))):
        assert float(off.abs().max()) < 1e-4, "these are not the factors"


def sample(call: Call, count: int) -> tuple[float, float]:
    """Microseconds of a call, of some back to back: until they return, and until the GPU is done."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (returned - begin) / count * 1e6, (time.perf_counter() - begin) / count * 1e6


def times(found: dict[tuple[str, str], Call]) -> Iterator[tuple[tuple[str, str], list[tuple[float, float]]]]:
    """The samples of each call, the last of which takes long."""
    *quick, last = found
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {name: [] for name in quick}
    for _ in range(SAMPLES):
        for name in quick:
            taken[name].append(sample(found[name], CALLS))
    yield from taken.items()
    yield last, [sample(found[last], 1)]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    machine = about(get_backend("cuda"))
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for (library, name), samples in times(calls()):
            host, wall = zip(*samples, strict=True)
            figures = {"host_us": median(host), "wall_us": median(wall), "wall_least_us": min(wall)}
            row = {"n": N, "batch": BATCH, "dtype": "float32", "call": name, "samples": len(samples)}
            row |= {"library": f"{library} {installed(library)}"} | {k: round(us, 2) for k, us in figures.items()}
            writer.writerow(row | machine)
            file.flush()
            print(f"{name:24s}", f"{row['library']:24s}", *(f"{row[each]:14.2f}" for each in figures), flush=True)


if __name__ == "__main__":
    main()
