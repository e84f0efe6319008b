"""All ways to factor larger matrices on a GPU, by order and batch: what the shipped table of plans is made from.

    python -m tests.times.larger.plans

from the root of the repository writes datasets/larger/larger_plans_h200.csv (--out FILE for another); then

    python -m batchchol tune --from datasets/larger/larger_plans_h200.csv --table batchchol/algorithms/plans.json

makes the table. Matrices are factored in place; seconds between events around single calls. Each way has three calls;
those within 15% of the best have seven more, which count in place of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from batchchol import get_backend
from batchchol.algorithms.large import factor_at
from batchchol.algorithms.plans import ALONE, Plan, plan, values_of, ways
from batchchol.backends.cuda.device import device
from batchchol.measure import plan_rows
from batchchol.measure.plan_rows import PlanRow
from batchchol.measure.provenance import about

from .ways import DATASETS, DTYPES, largest_ratio, matrices, seconds_of

ORDERS = (
    *(192, 224, 256, 288, 320, 384, 448, 512, 640, 768, 1024),
    *(1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384),
)
BATCHES = (1, 4, 16, 64, 256, 1024)
BRIEF, LONG, NEAR = 3, 7, 1.15


def cases() -> Iterator[tuple[str, int, int]]:
    """dtype, order and batch; larger matrices are factored one after the other."""
    for dtype, n in product(DTYPES, ORDERS):
        for batch in BATCHES if n <= ALONE else (1,):
            yield dtype, n, batch


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.larger.plans", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=DATASETS / "larger" / "larger_plans_h200.csv", help="default: %(default)s"
    )
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="no case begins after them (default: %(default)s)"
    )
    arguments = parser.parse_args()
    origin, begin = about(get_backend("cuda")), time.monotonic()
    for dtype, n, batch in cases():
        if time.monotonic() - begin > arguments.seconds:
            break
        rows = list(measured(dtype, n, batch, origin))
        plan_rows.append(arguments.out, rows)
        best = min((row for row in rows if row.seconds), key=lambda row: row.seconds)
        print(dtype, n, batch, f"{best.gflops:,.0f}", best.name, flush=True)
        import_module("cupy").get_default_memory_pool().free_all_blocks()


def measured(dtype: str, n: int, batch: int, origin: dict[str, str]) -> Iterator[PlanRow]:
    """A row of each way."""
    cupy = import_module("cupy")

    a = matrices(n, batch, dtype)
    work, info = cupy.empty_like(a), cupy.empty(batch, np.int32)

    def taken(how: Plan, calls: int) -> list[float]:
        call = partial(factor_at, device(), how, work.data.ptr, work.data.ptr, info.data.ptr, n, batch)
        return seconds_of(call, lambda: cupy.copyto(work, a), calls)

    brief = {how: taken(how, BRIEF) for how in dict.fromkeys((plan(n, batch, dtype, False), *ways(n, batch, dtype)))}
    best = min(min(found) for found in brief.values())
    for how, found in brief.items():
        near = min(found) <= NEAR * best
        seconds = taken(how, LONG) if near else found
        ratio = largest_ratio(a, work) if near and not int(abs(info).max()) else (float("inf") if near else 0.0)
        yield _row(how, dtype, n, batch, seconds, ratio, origin)


def _row(how: Plan, dtype: str, n: int, batch: int, seconds: list[float], ratio: float, origin: Any) -> PlanRow:
    middle, quarters = float(np.median(seconds)), np.quantile(seconds, (0.25, 0.75))
    spread = float(quarters[1] - quarters[0]) / middle
    return PlanRow(dtype, n, batch, values_of(how), middle, spread, len(seconds), ratio, "single", about=dict(origin))


if __name__ == "__main__":
    main()
