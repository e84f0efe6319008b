"""What `solve` and `cho_solve` take of arrays on one core of a CPU, beside NumPy, and SciPy in a loop.

    python -m tests.times.solves.host --out datasets/solves/solves_host_xeon.csv

A row is a call on one case with one right-hand side a matrix, `ieee`: the least seconds of a thread's own time, of
calls that take turns. `solve of a batch` has packed matrices.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

import batchchol
from batchchol import get_backend
from batchchol.measure.provenance import about, installed

from ..cpu import least_microseconds, matrices

OUT = Path(__file__).parents[3] / "datasets" / "solves" / "solves_host_xeon.csv"
ORDERS, BATCH = (4, 8, 16, 24, 32), 16_384
COLUMNS = (
    *("library", "n", "batch", "dtype", "threads", "seconds", "turns"),
    *("cpu", "compiler", "packages", "version", "commit", "date"),
)


def calls_on(a: Any) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """The calls on matrices, each with what is done before it, nothing."""
    b = np.random.default_rng(1).standard_normal(a.shape[:2]).astype(a.dtype)
    l, columns, packed = np.linalg.cholesky(a), b[..., None], batchchol.Batch.from_dense(a)
    calls: dict[str, Callable[[], Any]] = {
        "batchchol.solve": lambda: batchchol.solve(a, b),
        "batchchol.solve of a batch": lambda: batchchol.solve(packed, columns),
        "batchchol.cho_solve": lambda: batchchol.cho_solve(l, b),
        "numpy.linalg.solve": lambda: np.linalg.solve(a, columns),
        "scipy.linalg.cho_solve": lambda: [
            scipy.linalg.cho_solve((factor, True), column, check_finite=False)
            for factor, column in zip(l, b, strict=True)
        ],
    }
    for name in ("batchchol.solve", "batchchol.cho_solve", "scipy.linalg.cho_solve"):
        assert np.allclose(calls[name](), np.linalg.solve(a, columns)[..., 0], atol=1e-3), name
    return {name: (call, lambda: None) for name, call in calls.items()}


def main() -> None:
    """Write the file, and print a line for each case."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.host", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--orders", type=int, nargs="+", default=ORDERS)
    parser.add_argument("--dtypes", nargs="+", default=("float32", "float64"), choices=("float32", "float64"))
    parser.add_argument("--seconds", type=float, default=2, help="of a case at least (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    os.environ["BATCHCHOL_THREADS"] = "1"
    backend = get_backend("cpu")
    described = about(backend) | {name: backend.device()[name] for name in ("cpu", "compiler")}
    described["packages"] = ", ".join(f"{name} {installed(name)}" for name in ("numpy", "scipy"))
    said = {name: value for name, value in described.items() if name in COLUMNS}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for dtype in given.dtypes:
            for n in given.orders:
                least, turns = least_microseconds(calls_on(matrices(n, BATCH, dtype)), given.seconds)
                for name, taken in least.items():
                    case = {"library": name, "n": n, "batch": BATCH, "dtype": dtype, "threads": 1, "turns": turns}
                    writer.writerow(said | case | {"seconds": f"{taken / 1e6:.4g}"})
                stream.flush()
                print(n, dtype, *(f"{name} {taken:.0f}" for name, taken in least.items()), "us", flush=True)


if __name__ == "__main__":
    main()
