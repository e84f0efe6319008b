"""`python -m batchchol tune`: measure every schedule of the thread family and choose."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchchol.backends import Backend
    from batchchol.tuning import Point

HELP = "measure the schedules of each n on this machine; keep every point, print the best"
ORDERS = "2,3,4,5,6,7,8,10,12,14,16,20,24,28,32,40,48,64,80,100,128"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure and where to keep it."""
    parser.add_argument("--n", default=ORDERS, help="orders, comma-separated (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--math", default="ieee", choices=("ieee", "fast"))
    parser.add_argument("--target", help="instruction set (default: this machine's widest)")
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path("tune.csv"), help="every point, appended (default: tune.csv)"
    )
    parser.add_argument("--table", type=Path, help="write the winners as a table of defaults (JSON) here")


def run(arguments: argparse.Namespace) -> int:
    """Measure order by order; each order's points are on disk before the next begins."""
    from batchchol import tuning
    from batchchol.backends import get_backend

    backend = get_backend("cpu")
    target = arguments.target or backend.target
    points: list[tuning.Point] = []
    winners = []
    print(
        f"{'n':>4} {'nb':>3} {'looking':8} {'unroll':7} {'prefetch':8} {'staged':6} "
        f"{'ns/matrix':>10} {'GFLOP/s':>8} {'ratio':>6}"
    )
    for n in (int(text) for text in arguments.n.split(",")):
        candidates = tuning.specs(n, arguments.dtype, arguments.math, target)
        print(f"n = {n}: compiling {len(candidates)} kernels", file=sys.stderr)
        tuning.compile_all(backend, candidates, backend.threads)
        found = tuning.measure(backend, candidates, arguments.batch, arguments.threads)
        _append(arguments.out, found, backend)
        points += found
        winners.append(tuning.best(found))
        _print(winners[-1])
    if arguments.table:
        table = [asdict(choice) for choice in tuning.choices(winners, points)]
        arguments.table.write_text(json.dumps(table, indent=1) + "\n")
    return 0


def _print(point: Point) -> None:
    schedule, n = point.spec.schedule, point.spec.problem.n
    per_matrix = point.median_seconds / point.batch
    print(
        f"{n:4} {schedule.nb:3} {schedule.looking:8} {schedule.unroll:7} {schedule.prefetch!s:8} "
        f"{schedule.staged!s:6} "
        f"{per_matrix * 1e9:10.1f} {n**3 / 3 / per_matrix / 1e9:8.2f} {point.ratio:6.3f}",
        flush=True,
    )


def _append(path: Path, points: list[Point], backend: Backend) -> None:
    provenance = {key: backend.device()[key] for key in ("cpu", "compiler")} | {"date": date.today().isoformat()}
    rows: list[dict[str, Any]] = [_row(point) | provenance for point in points]
    new = not path.exists()
    with path.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)


def _row(point: Point) -> dict[str, Any]:
    spec = point.spec
    row = {"n": spec.problem.n, "dtype": spec.problem.dtype, "target": spec.target, "layout": spec.layout}
    row |= asdict(spec.schedule) | asdict(point)
    del row["spec"]
    return {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
