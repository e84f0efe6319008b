"""What solves by given factors take on a GPU: the kernels that a rule could choose, for one right-hand side and more.

In some three minutes, from the root of the repository, on a machine with a GPU:

    python -m tests.times.solves.staged

writes datasets/solves/staged_solves_h200.csv (--out FILE for another), to which batchchol/defaults/rules/solves.py is
fitted. Seconds a call, medians of samples on cold data, checked; `copy` is the share of the time that copying the
compulsory bytes would take at the rate of the machine's best copy. `chosen` is the kernel that `cho_solve` used.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

from batchchol import get_backend
from batchchol.backends import Backend
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.defaults.rules.solves import BATCHES, UNSTAGED_NB
from batchchol.measure.provenance import about
from batchchol.measure.solves import rotating_buffers
from batchchol.measure.timing import spread, timed
from batchchol.operations import potrs
from batchchol.operations.roofline import compulsory_bytes
from kernelgen import KernelSpec, Layout, Problem, SpecError, ThreadSchedule

OUT = Path(__file__).parents[3] / "datasets" / "solves" / "staged_solves_h200.csv"
ORDERS = (4, 8, 16, 24, 32, 48, 64, 96, 128)
# Batches and right-hand sides.
SIZES = ((131_072, 1), (131_072, 8), (16_384, 1), (16_384, 8), (1_024, 1))
# Multiply-adds of a call, twice: larger ones say nothing new.
MOST_WORK = 1 << 32
# Of staged kernels: threads to a matrix, rows of a step, right-hand sides at a time, threads of a block.
STAGED = ((1, 1, 1, 32), (1, 1, 4, 32), (1, 1, 4, 64), (1, 1, 4, 128), (1, 1, 8, 32), (1, 1, 2, 32), (2, 2, 4, 32),
          (2, 2, 2, 32), (4, 4, 4, 32), (4, 4, 2, 32), (4, 2, 2, 32), (8, 4, 4, 32), (8, 4, 2, 32), (8, 4, 1, 32),
          (16, 4, 4, 32), (16, 8, 2, 32), (32, 4, 4, 32), (32, 4, 4, 128), (32, 8, 2, 32))  # fmt: skip
LEAST_SPLIT = {48: 2, 64: 2, 96: 4, 128: 8}
MOST_SPLIT = {4: 1, 8: 4, 16: 8, 24: 8, 32: 16, 48: 8, 64: 16, 96: 32, 128: 32}
COLUMNS = (
    *("backend", "n", "batch", "nrhs", "layout", "nb", "rhs", "unroll", "staged", "split", "block", "chosen"),
    *("seconds", "spread", "ratio", "copy", "gpu", "driver", "toolkit", "cpu", "compiler"),
    *("version", "commit", "date"),
)


def chosen(backend: Backend, n: int, layout: Layout, batch: int) -> KernelSpec:
    """The kernel that is used by default."""
    where = (backend.target, layout.kind, layout.order, layout.chunk)
    request = Request(Problem(n, op="potrs"), *where, batch=batch, arch=backend.architecture, device=backend.model)
    return default_choice(request).spec


def kernels(backend: Backend, n: int, layout: Layout) -> Iterator[KernelSpec]:
    """The kernels that are timed on factors in a layout."""
    yield from (default := [chosen(backend, n, layout, batch) for batch in BATCHES])
    yield replace(default[0], schedule=ThreadSchedule(min(n, UNSTAGED_NB)))
    for split, nb, rhs, threads in STAGED:
        if LEAST_SPLIT.get(n, 1) <= split <= MOST_SPLIT.get(n, 32):
            schedule = ThreadSchedule(
                nb, unroll="full", staged=True, rhs=rhs, split=split, threads=threads, pdl=default[0].schedule.pdl
            )
            with suppress(SpecError):
                yield replace(default[0], schedule=schedule)


def copied(backend: Backend, n: int, layout: Layout, nrhs: int) -> float:
    """Seconds a matrix that copying takes."""
    rate = backend.ceilings("float32").copy_bytes_per_second
    return compulsory_bytes(n, layout, "float32", nrhs, "potrs") / rate


def rows(backend: Backend, orders: Sequence[int], samples: int) -> Iterator[dict[str, Any]]:
    """A row for each case and kernel."""
    cases = [(n, layout) for n in orders for layout in layouts(backend, n)]
    every = {case: list(dict.fromkeys(kernels(backend, *case))) for case in cases}
    start = time.perf_counter()
    backend.build([spec for specs in every.values() for spec in specs])
    print(f"{sum(map(len, every.values()))} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)
    for (n, layout), (batch, nrhs) in product(cases, SIZES):
        if batch * n**2 * nrhs >= MOST_WORK:
            continue
        l = backend.empty(n, batch, layout)
        # A triangle with such a diagonal is the factor of some matrix.
        backend.fill(l, "diagonally_dominant")
        few = np.random.default_rng(0).standard_normal((min(batch, 1_024), n, nrhs)).astype(l.dtype)
        buffers = rotating_buffers(backend, l, np.tile(few, (batch // len(few), 1, 1)))
        for spec in every[n, layout]:
            yield {
                "backend": backend.name, "n": n, "batch": batch, "nrhs": nrhs, "layout": str(layout),
                "chosen": spec == chosen(backend, n, layout, batch),
            } | row(backend, spec, buffers, nrhs, samples)  # fmt: skip
        del buffers, l


def layouts(backend: Backend, n: int) -> tuple[Layout, ...]:
    """Of batches, by default, of arrays, and chunks of a warp, which solves may be better in."""
    others = (Layout.chunked(32),) if n > 32 else ()
    return tuple(dict.fromkeys((backend.default_layout(n), Layout.canonical(), *others)))


def row(backend: Backend, spec: KernelSpec, buffers: Any, nrhs: int, samples: int) -> dict[str, Any]:
    """What a kernel takes, checked."""
    kernel, schedule = backend.kernel(spec), spec.schedule
    assert isinstance(schedule, ThreadSchedule)
    calls = [partial(kernel, *each, threads=1) for each in buffers]
    seconds, _ = timed(backend, calls, samples, backend.protocols[0])
    l, b, x = buffers[(samples - 1) % len(buffers)]
    ratio = potrs.check(l, b, x, spec.problem.math, samples=32, host=backend.host)
    median = float(np.median(seconds))
    return {
        "nb": schedule.nb, "rhs": schedule.rhs, "unroll": schedule.unroll, "staged": bool(schedule.staged),
        "split": schedule.split or 1, "block": schedule.threads, "seconds": f"{median:.4g}",
        "spread": f"{spread(seconds):.3f}", "ratio": f"{ratio:.3f}",
        "copy": f"{l.batch * copied(backend, l.n, l.layout, nrhs) / median:.3f}",
    }  # fmt: skip


def summary(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each case: the kernel chosen by default, that without a stage, and the fastest ones."""
    for case, some in groupby(found, lambda row: (row["n"], row["layout"], row["batch"], row["nrhs"])):
        each = sorted(some, key=lambda row: float(row["seconds"]))
        chosen = next(row for row in each if row["chosen"])
        plain = next((row for row in each if not row["staged"]), chosen)
        said = [f"plain {1e6 * float(plain['seconds']):.1f}", f"chosen {1e6 * float(chosen['seconds']):.1f}"]
        for row in each[:3]:
            how = f"s{row['split']} nb{row['nb']} r{row['rhs']} t{row['block']}"
            said.append(f"{1e6 * float(row['seconds']):.1f} ({row['copy']}) {how}")
        yield f"{' '.join(map(str, case))}: {'; '.join(said)}"


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.staged", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--orders", type=int, nargs="+", default=ORDERS)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    backend, found = get_backend("cuda"), []
    said = {name: value for name, value in about(backend).items() if name in COLUMNS}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for each in rows(backend, given.orders, given.samples):
            found.append(each)
            writer.writerow(said | each)
            stream.flush()
    print("\n".join(summary(found)))


if __name__ == "__main__":
    main()
