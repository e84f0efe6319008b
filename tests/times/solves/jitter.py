"""What `jitter=` takes on a CPU where no matrix fails, beside the same calls without.

In two minutes, from the root of the repository:

    python -m tests.times.solves.jitter

writes datasets/solves/jitter_epyc.csv (--out FILE for another). Calls on arrays in turns, A B B A, by one thread in
the thread's own time, into memory that is there; `more` is the median of the rounds' ratios, less 1, and `error` its
standard error.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from batchchol import cholesky_ex, get_backend, solve_ex
from batchchol.asv_plugin.gate.pair import rounds
from batchchol.backends import Backend
from batchchol.measure.provenance import about

OUT = Path(__file__).parents[3] / "datasets" / "solves" / "jitter_epyc.csv"
ORDERS, DTYPES, BATCH, SETS = (4, 8, 16, 32), ("float32", "float64"), 16_384, 5
COLUMNS = (
    *("op", "n", "dtype", "batch", "seconds", "more", "error", "rounds"),
    *("target", "cpu", "compiler", "version", "commit", "date"),
)
Call = Callable[[], None]


def calls(op: str, n: int, dtype: str, batch: int) -> list[list[Call]]:
    """Calls without and with, on the same arrays and into the same memory."""
    random, made = np.random.default_rng(0), list[list[Call]]([[], []])
    for _ in range(SETS):
        square = random.random((batch, n, n)).astype(dtype)
        a = (square + square.swapaxes(1, 2)) / 2 + n * np.eye(n, dtype=dtype)
        b = random.random((batch, n, 1)).astype(dtype)
        given: tuple[Any, ...] = (a, b) if op == "posv" else (a,)
        call: Callable[..., Any] = solve_ex if op == "posv" else cholesky_ex
        whole = partial(call, *given, out=np.empty_like(given[-1]))
        made[0].append(whole)
        made[1].append(partial(whole, jitter="auto"))
    return made


def rows(backend: Backend, seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each operation, order and type."""
    for op, dtype, n in product(("posv", "potrf"), DTYPES, ORDERS):
        logs, (without, _) = rounds(backend, calls(op, n, dtype, BATCH), seconds, alone=True)
        error = 1.2533 * float(np.std(logs)) / math.sqrt(len(logs))
        yield {
            "op": op, "n": n, "dtype": dtype, "batch": BATCH, "seconds": f"{median(without):.4g}",
            "more": f"{math.expm1(median(logs)):.4f}", "error": f"{error:.4f}", "rounds": len(logs),
        }  # fmt: skip


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.jitter", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    os.environ["BATCHCHOL_THREADS"] = "1"
    backend = get_backend("cpu")
    said = {name: value for name, value in about(backend).items() if name in COLUMNS} | {"target": backend.target}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows(backend, given.seconds):
            print(*row.values(), flush=True)
            writer.writerow(said | row)


if __name__ == "__main__":
    main()
