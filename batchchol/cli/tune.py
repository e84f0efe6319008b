"""`python -m batchchol tune`: measure every schedule of the families asked for and choose."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from batchchol.arguments import integers, names, positive
from kernelgen.schedules import FAMILIES, MATHS, ThreadSchedule

if TYPE_CHECKING:
    from batchchol.backends import Backend
    from batchchol.tuning import Point
    from kernelgen import KernelSpec

HELP = "measure the schedules of each n on this machine; keep every point, print the best"
ORDERS = "2,3,4,5,6,7,8,10,12,14,16,20,24,28,32,40,48,64,80,100,128"

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([1-9]\d*)(KiB|MiB|GiB)?")
_HEADER = f"{'n':>4} {'batch':>10} {'best schedule':52} {'ns/matrix':>10} {'GFLOP/s':>9} {'spread':>6} {'ratio':>6}"
_REPORT_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure and where to keep it."""
    parser.add_argument("--backend", help="cpu or cuda (default: cpu)")
    parser.add_argument("--n", type=integers, default=ORDERS, help="orders, such as 8,16-20 (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--math", type=names(MATHS), default="ieee", metavar="LIST", help="default: ieee")
    parser.add_argument(
        "--family", default="thread", choices=(*FAMILIES, "all"), help="kernels to measure (default: thread)"
    )
    parser.add_argument("--target", help="instruction set (default: this machine's widest)")
    parser.add_argument(
        "--batch",
        type=_sizes,
        default="16384",
        help="matrices, or as many as fill so much memory (2GiB); comma-separated, the table is made from the first",
    )
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path("tune.csv"), help="every point, appended (default: tune.csv)"
    )
    parser.add_argument("--table", type=Path, help="write the winners as a table of defaults (JSON) here")


def run(arguments: argparse.Namespace) -> int:
    """Measure order by order; the points of each order and batch are on disk before the next begins."""
    from batchchol import tuning
    from batchchol.backends import get_backend
    from batchchol.provenance import about
    from batchchol.tuning_rows import append, row

    backend = get_backend(arguments.backend or "cpu")
    target = arguments.target or backend.target
    families = _families(arguments, target)
    cases = itertools.product(arguments.n, arguments.math)
    candidates = {case: tuning.specs(case[0], arguments.dtype, case[1], target, families) for case in cases}
    _build(backend, [spec for specs in candidates.values() for spec in specs])
    ceilings, origin = backend.ceilings(arguments.dtype, arguments.threads), about(backend)
    print(_HEADER)
    for_table: list[Point] = []
    first = (arguments.math[0], arguments.batch[0])
    for (n, math), specs in candidates.items():
        for size in arguments.batch:
            batch = _matrices(size, n, arguments.dtype)
            found = tuning.measure(backend, specs, batch, arguments.threads)
            append(arguments.out, [row(point, ceilings, origin) for point in found])
            _print(tuning.best(found))
            for_table += found if (math, size) == first else []
    if arguments.table:
        rows = [asdict(choice) for choice in tuning.table(for_table)]
        rows = [{key: value for key, value in entry.items() if value is not None} for entry in rows]
        arguments.table.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _families(arguments: argparse.Namespace, target: str) -> tuple[str, ...]:
    """The families that --family means; refuses one that the target lacks, and a table of one without defaults."""
    from batchchol.errors import BatchcholError
    from batchchol.tuning import families_of

    known = families_of(target)
    chosen = known if arguments.family == "all" else (arguments.family,)
    if not set(chosen) <= set(known):
        raise BatchcholError(f"--family: got {arguments.family!r}, target {target!r} has {', '.join(known)}")
    if arguments.table and ThreadSchedule.family not in chosen:
        raise BatchcholError(
            f"--table: defaults are of family {ThreadSchedule.family!r}, --family {arguments.family} has none"
        )
    return chosen


def _sizes(text: str) -> list[str]:
    for size in (sizes := text.split(",")):
        if not _SIZE.fullmatch(size):
            raise argparse.ArgumentTypeError(f"got {size!r}, expected matrices or an amount of memory such as 2GiB")
    return sizes


def _matrices(size: str, n: int, dtype: str) -> int:
    """How many matrices a --batch means: a number, or as many as so much memory holds, in whole chunks of 1,024."""
    number, unit = _SIZE.fullmatch(size).groups()  # type: ignore[union-attr]
    if unit is None:
        return int(number)
    per_matrix = n * n * {"float32": 4, "float64": 8}[dtype]
    return max(1, int(number) * _UNITS[unit] // per_matrix // 1024) * 1024


def _build(backend: Backend, specs: Sequence[KernelSpec]) -> None:
    """Compile everything ahead, in parallel; what fails is found again, and recorded, when it is measured."""
    reported = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal reported
        if done == total or time.monotonic() - reported >= _REPORT_SECONDS:
            reported = time.monotonic()
            print(f"batchchol: {done:,} of {total:,} kernels compiled ({done / total:.0%})", file=sys.stderr)

    backend.build(specs, progress=progress)


def _print(point: Point) -> None:
    spec, n, per_matrix = point.spec, point.spec.problem.n, point.median_seconds / point.batch
    # The name without what all of them have in common.
    schedule = spec.name.split(f"_{spec.order}_", 1)[1]
    print(
        f"{n:4} {point.batch:10,} {schedule:52} {per_matrix * 1e9:10.2f} {n**3 / 3 / per_matrix / 1e9:9.2f} "
        f"{point.spread:6.1%} {point.ratio:6.3f}",
        flush=True,
    )
