"""What inverses and logarithms of determinants take on a GPU, and what took their place before.

    python -m tests.times.solves.inversions [--out FILE] [--seconds S]

from the root of the repository writes datasets/solves/inversions_h200.csv: 131,072 matrices, float32, `ieee`, queued,
cold, checked. `what` is a kernel, the default or one by tiles, or what was called before there were any: `solve_ex`
for the identity, or `log_determinants` after the default factorization.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from batchchol import default_spec, get_backend, solve_ex
from batchchol.backends import Backend
from batchchol.measure import provenance
from batchchol.measure.solves import CHECKS, buffers_with_room, info_of
from batchchol.operations.roofline import compulsory_bytes
from kernelgen import KernelSpec, Layout, Problem, SpecError, ThreadSchedule

OUT = Path(__file__).parents[3] / "datasets" / "solves" / "inversions_h200.csv"
BATCH, SAMPLES, NB = 131_072, 20, 4
LAYOUTS = (Layout.canonical(), Layout.chunked(32))
ORDERS = (32, 21, 8, 16, 24, 40, 20, 48)
# Where tiles are timed beside straight-line code, the logarithms, and solutions for the identity.
BOTH, LOGARITHMS, IDENTITIES = (16, 20, 21), (8, 16, 24), (8, 16, 32)


@dataclass(frozen=True)
class Case:
    """A kernel of an operation on matrices in a layout."""

    layout: Layout
    spec: KernelSpec

    @property
    def n(self) -> int:
        return self.spec.problem.n


def default(n: int, op: str, layout: Layout) -> KernelSpec:
    """The default kernel."""
    where = {"layout": layout.kind, "order": layout.order, "chunk": layout.chunk}
    return default_spec(n, op=op, target="cuda", arch="sm_90", batch=BATCH, **where)


def by_tiles(n: int, op: str, layout: Layout) -> KernelSpec:
    """The kernel whose triangles stay in shared memory."""
    schedule = ThreadSchedule(NB, stride=layout.chunk, pdl=True)
    return KernelSpec(Problem(n, op=op), layout.kind, layout.order, schedule, "cuda")


def cases() -> Iterator[Case]:
    """All of them, those of an order after each other."""
    for n in ORDERS:
        for layout in LAYOUTS:
            for op in ("poinv", "potri"):
                try:
                    yield Case(layout, default(n, op, layout))
                except SpecError:
                    yield Case(layout, by_tiles(n, op, layout))
            if n in BOTH:
                yield Case(layout, by_tiles(n, "poinv", layout))
            if n in LOGARITHMS:
                yield Case(layout, default(n, "logdet", layout))


def measured(backend: Backend, case: Case, copy: float, about: dict[str, object]) -> Iterator[dict[str, object]]:
    """The rows of a case: the kernel, and what took its place."""
    from batchchol.backends.cuda import memory, support
    from batchchol.backends.cuda.device import device

    spec, op, n, layout = case.spec, case.spec.problem.op, case.n, case.layout
    matrices = backend.empty(n, BATCH, layout)
    backend.fill(matrices, "diagonally_dominant")
    sets = buffers_with_room(backend, spec, matrices)
    (info,) = info_of(backend, spec, matrices)

    def row(what: str, calls: Sequence[Callable[[], None]], ratio: float | None) -> dict[str, object]:
        seconds = median(backend.seconds(calls, samples=SAMPLES))
        share = BATCH * compulsory_bytes(n, layout, op=op) / copy / seconds
        timed = {"op": op, "n": n, "batch": BATCH, "layout": str(layout), "what": what}
        timed |= {"microseconds": round(seconds * 1e6, 2), "roofline_fraction": round(share, 3)}
        return timed | {"ratio": "" if ratio is None else round(ratio, 3), **about}

    kernel = backend.kernel(spec)
    calls = [partial(kernel, *each, info, threads=1) for each in sets]
    calls[-1]()
    given, made = sets[-1]
    yield row(spec.name, calls, CHECKS[op](given, made, info, "ieee", samples=16, host=backend.host))
    if op == "logdet":
        factor, factors, signs = (
            backend.kernel(default(n, "potrf", layout)),
            backend.empty(n, BATCH, layout),
            sets[0][1],
        )

        def two(a: Any, logs: Any) -> None:
            factor(a, factors, info, threads=1)
            addresses = factors.address, int(info.gpudata), int(signs.gpudata), int(logs.gpudata)
            support.log_determinants(device(), *addresses, n, BATCH, layout, "float32")

        yield row("potrf and log_determinants", [partial(two, *each) for each in sets], None)
    if n in IDENTITIES and layout.kind == "canonical" and spec == default(n, "poinv", layout):
        eye = memory.to_device(np.eye(n, dtype=np.float32)[None], "an identity")
        yield row("solve_ex for the identity", [partial(solve_ex, a, eye) for a, _ in sets[:2]], None)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the file and print a line for each row."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.inversions", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=OUT, help="the file (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="no case begins later (default: %(default)s)")
    given, begin, backend = parser.parse_args(argv), time.perf_counter(), get_backend("cuda")
    wanted, rows = list(cases()), list[dict[str, object]]()
    factors = [default(case.n, "potrf", case.layout) for case in wanted if case.spec.problem.op == "logdet"]
    backend.build([*(case.spec for case in wanted), *factors])
    copy = backend.ceilings().copy_bytes_per_second
    about: dict[str, object] = {"copy_bytes_per_second": round(copy), **provenance.about(backend)}
    for case in wanted:
        if time.perf_counter() - begin > given.seconds:
            print(f"no time for {case.spec.name}")
            continue
        for found in measured(backend, case, copy, about):
            rows.append(found)
            print(*list(found.values())[:8], flush=True)
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
