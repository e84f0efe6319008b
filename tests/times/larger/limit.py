"""One matrix of a GPU as large as its memory: the library's factorization, in place, and cuSOLVER's.

    python -m tests.times.larger.limit

from the root of the repository writes datasets/larger/larger_limit_h200.csv (--out FILE for another). Matrices are
diagonally dominant, elements a function of their place, so that they are made where they are factored and none is
kept; `--n 0` is the largest order for which that leaves room for the check. Seconds between events around single
calls, of which the first counts too; `share` is that of the best rate at which cuBLAS updates a large square; `bytes`
are the matrix's, `free` those that the GPU had before. `ratio` is the largest residual ratio of `ROWS` rows, spread
over the matrix, the last among them, in all columns; infinite if its info is not 0.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

from batchchol import get_backend
from batchchol.algorithms.large import factor_at
from batchchol.algorithms.plans import plan
from batchchol.backends.cuda.device import device
from batchchol.measure.provenance import about

from .ways import ABOUT, DATASETS, DTYPES, bound, cusolver, seconds_of

_OWN = ("dtype", "n", "batch", "who", "how", "samples", "seconds", "gflops", "share", "ratio", "bytes", "free")
COLUMNS = (*_OWN, *ABOUT)
ORDERS = (32_768, 65_536, 0)
# Rows that are checked; those of the factor that are at hand at once; what beside the matrix has to fit.
ROWS, AT_ONCE, RESERVE = 64, 128, 2 << 30
# A whole number, different for each pair of places, by the finalizer of SplitMix64.
FILL = """
extern "C" __global__ void fill(SCALAR *a, const long long n, const long long *rows, const long long count)
{
    const long long threads = (long long)gridDim.x * blockDim.x;
    for (long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x; at < count * n; at += threads) {
        const long long row = rows ? rows[at / n] : at / n, column = at % n;
        unsigned long long x = (unsigned long long)max(row, column) * n + min(row, column) + 0x9e3779b97f4a7c15ULL;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
        a[at] = (SCALAR)((x ^ (x >> 31)) >> 40) / 16777216 + (row == column ? n : 0);
    }
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.larger.limit", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=DATASETS / "larger" / "larger_limit_h200.csv", help="default: %(default)s"
    )
    parser.add_argument("--n", type=int, nargs="+", default=ORDERS, help="default: %(default)s")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES, help="default: both")
    parser.add_argument("--calls", type=int, default=1, help="of each (default: %(default)s)")
    parser.add_argument("--alone", action="store_true", help="without cuSOLVER")
    arguments = parser.parse_args()
    origin, pool = about(get_backend("cuda")), import_module("cupy").get_default_memory_pool()
    rates = {dtype: max(float(row["gflops"]) for row in bound(dtype)) for dtype in arguments.dtype}
    pool.free_all_blocks()
    with open(arguments.out, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for n, dtype in product(arguments.n, arguments.dtype):
            for row in case(n, dtype, arguments.calls, rates[dtype], alone=arguments.alone or not n):
                writer.writerow({**{name: origin.get(name, "") for name in ABOUT}, **row})
                stream.flush()
                print(*row.values(), flush=True)
            pool.free_all_blocks()


def case(n: int, dtype: str, calls: int, rate: float, *, alone: bool) -> Iterator[dict[str, Any]]:
    """The library's plan, and unless it is `alone`, cuSOLVER in both fill modes."""
    cupy = import_module("cupy")

    free, itemsize = int(cupy.cuda.Device().mem_info[0]), np.dtype(dtype).itemsize
    n = n or largest_order(free, itemsize)
    work, info = cupy.empty((1, n, n), dtype), cupy.empty(1, np.int32)
    how = plan(n, 1, dtype, upper=False)
    addresses = work.data.ptr, work.data.ptr, info.data.ptr
    contenders: list[tuple[str, str, Callable[[], object]]] = [
        ("batchchol", how.name, partial(factor_at, device(), how, *addresses, n, 1))
    ]
    if not alone:
        contenders += [("cusolver", mode, call) for mode, call in cusolver(work, info)]
    for who, name, call in contenders:
        of = {"dtype": dtype, "n": n, "batch": 1, "who": who, "how": name, "bytes": n * n * itemsize, "free": free}
        try:
            middle = float(np.median(seconds_of(call, partial(fill, work[0]), calls, warm_up=0)))
        except RuntimeError as error:
            yield {**of, "how": f"{name}: {error}"}
            continue
        ratio = float("inf") if int(info[0]) else largest_ratio(work[0]) if who == "batchchol" else ""
        gflops = n**3 / 3 / middle / 1e9
        found = {"samples": calls, "seconds": f"{middle:.6g}", "gflops": f"{gflops:.6g}"}
        yield {**of, **found, "share": f"{gflops / rate:.4g}", "ratio": f"{ratio:.3g}" if ratio else ""}


def largest_order(free: int, itemsize: int) -> int:
    """Of a matrix that leaves `RESERVE` of these bytes, in whole 128s."""
    return isqrt((free - RESERVE) // itemsize) // 128 * 128


def fill(a: Any, rows: Any = None) -> None:
    """Make a matrix, or, in an array of as many rows, some rows of it."""
    cupy = import_module("cupy")

    scalar = {"float32": "float", "float64": "double"}[a.dtype.name]
    kernel = cupy.RawKernel(FILL.replace("SCALAR", scalar), "fill")
    kernel((4096,), (256,), (a, np.int64(a.shape[1]), np.int64(0) if rows is None else rows, np.int64(len(a))))


def largest_ratio(l: Any) -> float:
    """Of `ROWS` rows of A = L L^T in all columns, as `batchchol.operations.residual` has it, by blocks of rows."""
    cupy = import_module("cupy")

    n, unit = len(l), np.finfo(l.dtype).eps / 2
    rows = cupy.asarray(np.unique(np.linspace(0, n - 1, ROWS).astype(np.int64)))
    a = cupy.empty((len(rows), n), l.dtype)
    fill(a, rows)
    chosen, worst = l[rows].astype(np.float64), 0.0
    for at in range(0, n, AT_ONCE):
        block = l[at : at + AT_ONCE].astype(np.float64)
        if float(abs(cupy.triu(block, at + 1)).max()):
            return float("inf")
        error = abs(a[:, at : at + AT_ONCE] - chosen @ block.T)
        worst = max(worst, float((error / ((n + 1) * unit * (abs(chosen) @ abs(block).T))).max()))
    return worst


if __name__ == "__main__":
    main()
