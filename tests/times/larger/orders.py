"""Many matrices of each order from 128 to 1,024 on a GPU, by what the library chooses and by cuSOLVER, in turns.

    python -m tests.times.larger.orders

from the root of the repository writes datasets/larger/larger_orders_h200.csv (--out FILE for another): orders in
steps of 32 and those above by one, 1,024 matrices of each, and those to 256 in steps of 16, 16,384; and fewer of
three orders. Matrices are factored in place, on the default stream; seconds between events around single calls, of
which each has one in each round: their median, and the distance of their quartiles over it. `how` is the plan, or
cuSOLVER's fill mode, of which "upper" has fewer rounds. `ratio` is the largest residual ratio of three matrices.
`share` is that of the bound: of the time in which the lower triangles could be read and all be written as fast as a
copy of them does it, or n^3/3 flops be done as fast as cuBLAS updates a large square, whichever is longer. Order 128
is that of the library's call, out of place. `--least 705 --batch 1024 --dtype float32` measures a part of them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from batchchol import get_backend
from batchchol.algorithms.large import factor_at
from batchchol.algorithms.plans import ALONE, plan
from batchchol.backends.cuda.device import device
from batchchol.measure.provenance import about

from .ways import ABOUT, DATASETS, DTYPES, bound, cusolver, largest_ratio, library_call, matrices, seconds_of

COLUMNS = ("dtype", "n", "batch", "who", "how", "samples", "seconds", "spread", "gflops", "ratio", "share", *ABOUT)
FEWER = tuple(product((256, 512, 1024), (1, 4, 16, 64, 256)))
CASES = (
    *((n + more, 16_384) for n in range(128, 257, 16) for more in (0, 1) if n + more <= 256),
    *((n + more, 1024) for n in range(256, 1025, 32) for more in (0, 1) if 256 < n + more <= ALONE),
    *FEWER,
)
ROUNDS, FEW = 20, 5
Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.larger.orders", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=DATASETS / "larger" / "larger_orders_h200.csv", help="default: %(default)s"
    )
    parser.add_argument("--n", type=int, nargs="+", default=(), help="default: all")
    parser.add_argument("--least", type=int, default=1, metavar="N", help="no smaller orders")
    parser.add_argument("--batch", type=int, nargs="+", default=(), metavar="N", help="default: all")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES, help="default: both")
    arguments = parser.parse_args()
    orders = arguments.n or {n for n, _ in CASES if n >= arguments.least}
    batches = arguments.batch or {batch for _, batch in CASES}
    cases = [(n, batch) for n, batch in CASES if n in orders and batch in batches]
    origin = about(get_backend("cuda"))
    pool = import_module("cupy").get_default_memory_pool()
    rates = {dtype: max(float(row["gflops"]) for row in bound(dtype)) for dtype in arguments.dtype}
    with open(arguments.out, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for (n, batch), dtype in product(cases, arguments.dtype):
            for row in case(n, batch, dtype, rates[dtype] * 1e9):
                writer.writerow({**{name: origin.get(name, "") for name in ABOUT}, **row})
                print(*row.values(), flush=True)
            stream.flush()
            pool.free_all_blocks()


def case(n: int, batch: int, dtype: str, rate: float) -> Iterator[dict[str, Any]]:
    """The library's plan, and cuSOLVER in both fill modes; the bound's flops are done at a `rate`."""
    cupy = import_module("cupy")

    a = matrices(n, batch, dtype)
    work, info = cupy.empty_like(a), cupy.empty(batch, np.int32)
    calls = {("cusolver", how): call for how, call in cusolver(work, info)}
    if n <= 128:
        own = "batchchol", "cholesky_ex"
        calls[own] = library_call(a)
    else:
        how = plan(n, batch, dtype, upper=False)
        own = "batchchol", how.name
        addresses = work.data.ptr, work.data.ptr, info.data.ptr
        calls[own] = partial(factor_at, device(), how, *addresses, n, batch)

    def restore() -> None:
        cupy.copyto(work, a)

    copied = float(np.median(seconds_of(restore, lambda: None, FEW)))
    least = max(copied * (3 * n + 1) / (4 * n), batch * n**3 / 3 / rate)
    named = {"dtype": dtype, "n": n, "batch": batch}
    for key, seconds in in_turns(calls, restore, {("cusolver", "upper"): FEW}).items():
        found: dict[str, str | int] = {"ratio": "", **statistics(seconds, n, batch)}
        found["share"] = f"{least / float(found['seconds']):.4g}"
        if key == own and n > 128:
            found["ratio"] = f"{right(a, work, info, calls[own], restore):.3g}"
        yield {**named, "who": key[0], "how": key[1], **found}


def right(a: Any, work: Any, info: Any, call: Call, restore: Call) -> float:
    """The largest ratio of the factors that a call leaves, infinite if any matrix failed."""
    restore()
    call()
    return float("inf") if int(abs(info).max()) else largest_ratio(a, work)


def in_turns(
    calls: Mapping[Any, Call], restore: Callable[[], None], fewer: Mapping[Any, int], rounds: int = ROUNDS
) -> dict[Any, list[float]]:
    """Seconds of calls, each once in each round, behind a round that does not count; some in fewer rounds."""
    seconds: dict[Any, list[float]] = {key: [] for key in calls}
    for turn, (key, call) in product(range(rounds), calls.items()):
        if turn < fewer.get(key, rounds):
            seconds[key] += seconds_of(call, restore, 1, warm_up=int(turn == 0))
    return seconds


def statistics(seconds: list[float], n: int, batch: int) -> dict[str, str | int]:
    """The columns that say what was measured."""
    middle, (low, high) = float(np.median(seconds)), np.quantile(seconds, (0.25, 0.75))
    gflops = batch * n**3 / 3 / middle / 1e9
    spread = f"{(high - low) / middle:.3g}"
    return {"samples": len(seconds), "seconds": f"{middle:.6g}", "spread": spread, "gflops": f"{gflops:.6g}"}


if __name__ == "__main__":
    main()
