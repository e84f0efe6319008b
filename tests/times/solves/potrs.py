"""What solves by given factors take: each tile size of the kernel, for one right-hand side and for several.

In less than two minutes, from the root of the repository:

    python -m tests.times.solves.potrs --backend cuda

writes datasets/solves/solves_h200.csv (--out FILE for another). Seconds a call, medians of samples on cold data,
checked; `copy` is the share of the time that copying the compulsory bytes would take at the rate of the machine's
best copy. `chosen` is the kernel that `cho_solve` uses.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchchol import factor, get_backend
from batchchol.backends import Backend
from batchchol.batches.batch import Batch
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.measure.provenance import about
from batchchol.measure.solves import sample_solve
from batchchol.operations.roofline import compulsory_bytes
from kernelgen import KernelSpec, Layout, Problem

OUT = Path(__file__).parents[3] / "datasets" / "solves" / "solves_h200.csv"
CASES = [(n, batch, nrhs) for n in (8, 16, 32, 64, 128) for batch in (16_384, 131_072) for nrhs in (1, 8)]
TILES = (2, 4, 8)
COLUMNS = (
    *("backend", "n", "batch", "nrhs", "layout", "nb", "rhs", "chosen", "seconds", "spread", "ratio", "copy"),
    *("threads", "gpu", "driver", "toolkit", "cpu", "compiler", "version", "commit", "date"),
)


def kernels(backend: Backend, l: Batch) -> Iterator[tuple[KernelSpec, bool]]:
    """The kernels that are timed on a batch of factors, and whether each is the chosen one."""
    where = (backend.target, l.layout.kind, l.layout.order, l.layout.chunk)
    request = Request(Problem(l.n, l.dtype_name, op="potrs"), *where, arch=backend.architecture, device=backend.model)
    chosen = default_choice(request).spec
    for nb in TILES:
        spec = replace(chosen, schedule=replace(chosen.schedule, nb=nb))
        yield spec, spec == chosen


def copied(backend: Backend, n: int, layout: Layout, nrhs: int, threads: int) -> float:
    """Seconds a matrix that copying takes."""
    rate = backend.ceilings("float32", threads).copy_bytes_per_second
    return compulsory_bytes(n, layout, "float32", nrhs, "potrs") / rate


def rows(backend: Backend, threads: int) -> Iterator[dict[str, Any]]:
    """A row for each case and kernel."""
    for n, batch, nrhs in CASES:
        a = backend.empty(n, batch)
        backend.fill(a, "diagonally_dominant")
        l = factor(a).L
        for spec, chosen in kernels(backend, l):
            sample = sample_solve(backend, spec, l, nrhs, threads=threads)
            schedule: Any = spec.schedule
            yield {
                "backend": backend.name, "n": n, "batch": batch, "nrhs": nrhs, "layout": str(l.layout),
                "nb": schedule.nb, "rhs": schedule.rhs, "chosen": chosen, "seconds": f"{sample.median:.4g}",
                "spread": f"{sample.spread:.3f}", "ratio": f"{sample.ratio:.3f}", "threads": threads,
                "copy": f"{batch * copied(backend, n, l.layout, nrhs, threads) / sample.median:.3f}",
            }  # fmt: skip


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.potrs", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    backend = get_backend(given.backend)
    said = {name: value for name, value in about(backend).items() if name in COLUMNS}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows(backend, given.threads):
            writer.writerow(said | row)
            stream.flush()


if __name__ == "__main__":
    main()
