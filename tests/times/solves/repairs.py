"""What `jitter=` takes on a GPU: without, in the kernel that factors and solves, and in one behind it.

In about a minute, from the root of the repository, on a machine with a GPU:

    python -m tests.times.solves.repairs

writes datasets/solves/repair_h200.csv (--out FILE for another). Medians of seconds a call, cold, of bursts that take
turns in one process; `more` is what repair takes beside the same call without. Of `failing` matrices in a thousand
one pivot has the wrong sign: all tries are in vain, the most that repair can take.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any, cast

import numpy as np

from batchchol import get_backend
from batchchol.api.factors.device_repairs import Repair, repairs_itself
from batchchol.artifacts.cuda_modules import build_all
from batchchol.backends.base import Form
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.arrays import dense
from batchchol.backends.cuda.backend import CudaBackend
from batchchol.measure.provenance import about
from batchchol.measure.timing import CACHES
from batchchol.plan import TWO, array_choice, chosen_kernel, kernel_choice
from kernelgen import KernelSpec, Layout, Problem, SpecError, generate
from kernelgen.emit.operations.repair import generate_repairing
from kernelgen.emit.support import support_kernels

OUT = Path(__file__).parents[3] / "datasets" / "solves" / "repair_h200.csv"
ORDERS = (4, 8, 16, 24, 32, 64)
DTYPES = ("float32", "float64")
# Batches, and in how many of a thousand matrices of each a pivot has the wrong sign.
BATCHES = {131_072: (0, 1), 16_384: (0,)}
LAYOUTS = (Layout.chunked(32), Layout.canonical())
COLUMNS = (
    *("op", "n", "dtype", "batch", "layout", "failing", "way", "seconds", "more"),
    *("gpu", "driver", "toolkit", "version", "commit", "date"),
)
Call = Callable[[], object]


def matrices(backend: CudaBackend, n: int, dtype: str, batch: int, layout: Layout, failing: int) -> list[Any]:
    """Batches that together exceed the cache, some in a thousand of which fail."""
    a = backend.empty(n, batch, layout, dtype)
    if failing:
        backend.fill(a, "failing", every=1000 // failing, kind="negative")
    else:
        backend.fill(a, "diagonally_dominant")
    sets = 1 + CACHES * backend.last_level_cache_bytes() // a.nbytes
    return [a, *(a.copy() for _ in range(sets - 1))]


def solves(backend: CudaBackend, batches: Sequence[Any]) -> Mapping[str, list[Call]]:
    """By way, calls that factor and solve for one right-hand side."""
    n, batch, layout = batches[0].n, batches[0].batch, batches[0].layout
    kernel = cast(Any, chosen_kernel("posv", backend, Form.of(batches[0]), False, None, None, argument="a"))
    b = np.ones((batch, n, 1), batches[0].dtype)
    calls: dict[str, list[Call]] = {"none": [], "itself": [], "behind": []}
    for a in batches:
        right, x, info = backend.place(b), backend.place(b), memory.info_array(batch)
        addresses = (a.address, *(int(each.gpudata) for each in (right, x, info)))
        again = Repair.of("auto", a.address, Form.of(a), False, info)
        plain = partial(kept, (right, x, info), partial(kernel.launch, addresses, 1, batch, layout))
        calls["none"].append(plain)
        if repairs_itself(kernel):
            calls["itself"].append(partial(again.solve, kernel, addresses, 1))
        behind = partial(again.queue, b=addresses[1], x=addresses[2], nrhs=1)
        calls["behind"].append(partial(both, plain, behind))
    return calls


def factorizations(backend: CudaBackend, batches: Sequence[Any]) -> Mapping[str, list[Call]]:
    """By way, calls that factor arrays."""
    n, batch, dtype = batches[0].n, batches[0].batch, batches[0].dtype
    spec, layout = array_choice(backend, Problem(n, dtype.name), batch, None, host=False)
    launches, kernel = dense.launches(backend, spec, layout, batch), backend.kernel(spec)
    calls: dict[str, list[Call]] = {"none": [], "itself": [], "behind": []}
    for a in batches:
        l, info = memory.empty((batch, n, n), dtype, "factors"), memory.info_array(batch)
        again = Repair.of("auto", a.address, Form.of(a), False, info)
        run = partial(launches.run, a.address, int(l.gpudata), int(info.gpudata))
        plain = partial(kept, (l, info), run)
        calls["none"].append(plain)
        if layout.kind == "canonical" and repairs_itself(kernel):
            calls["itself"].append(partial(again.factor, kernel, int(l.gpudata)))
        calls["behind"].append(partial(both, plain, partial(again.queue, l=int(l.gpudata))))
    return calls


def kept(_: object, call: Call) -> None:
    call()


def both(first: Call, second: Call) -> None:
    first()
    second()


def medians(backend: CudaBackend, calls: Mapping[str, list[Call]], rounds: int) -> Mapping[str, float]:
    """Seconds a call of each way, in random order: what runs before the first one is no matter."""
    ways = {way: cycle(each) for way, each in calls.items() if each}
    estimate = float(np.median(backend.seconds(calls["none"], samples=3)))
    count = min(max(round(2e-4 / estimate), 2), 20)
    taken: dict[str, list[float]] = {way: [] for way in ways}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        order = ["none", *rng.permutation([*ways, *ways]).tolist()]
        found = backend.in_turn([list(islice(ways[way], count)) for way in order])
        for way, seconds in list(zip(order, found, strict=True))[1:]:
            taken[way].append(seconds)
    return {way: float(np.median(each)) for way, each in taken.items()}


def build(backend: CudaBackend, orders: Sequence[int], dtypes: Sequence[str], sizes: Sequence[int]) -> None:
    """Compile what is timed, many kernels at a time."""
    specs = set[KernelSpec]()
    for n, dtype, batch, layout in product(orders, dtypes, sizes, LAYOUTS):
        form = Form(n, batch, dtype, layout)
        for op in ("posv", *TWO):
            with suppress(SpecError):
                specs.add(kernel_choice(op, cast(Any, backend), form, False, None, None, argument="a"))
        specs.add(array_choice(cast(Any, backend), Problem(n, dtype), batch, None, host=False)[0])
    sources = [
        source for spec in specs for source in (generate(spec), generate_repairing(spec)) if source is not None
    ]
    build_all([*sources, *support_kernels()], backend.architecture)


def rows(
    backend: CudaBackend, orders: Sequence[int], dtypes: Sequence[str], sizes: Sequence[int], rounds: int
) -> Iterator[dict[str, Any]]:
    """A row for each case and way."""
    for n, dtype in product(orders, dtypes):
        for batch in sizes:
            for layout, failing in product(LAYOUTS, BATCHES[batch]):
                batches = matrices(backend, n, dtype, batch, layout, failing)
                made: dict[str, Mapping[str, list[Call]]] = {}
                with suppress(SpecError):
                    made["posv"] = solves(backend, batches)
                if layout.kind == "canonical":
                    made["potrf"] = factorizations(backend, batches)
                for op, calls in made.items():
                    found = medians(backend, calls, rounds)
                    for way, seconds in found.items():
                        yield {
                            "op": op, "n": n, "dtype": dtype, "batch": batch, "layout": str(layout),
                            "failing": failing, "way": way, "seconds": f"{seconds:.4g}",
                            "more": f"{seconds / found['none'] - 1:.4f}",
                        }  # fmt: skip
                del batches, made


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.repairs", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--orders", type=int, nargs="+", default=ORDERS)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--batches", type=int, nargs="+", choices=tuple(BATCHES), default=tuple(BATCHES))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    backend = cast(CudaBackend, get_backend("cuda"))
    build(backend, given.orders, given.dtypes, given.batches)
    said = {name: value for name, value in about(cast(Any, backend)).items() if name in COLUMNS}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for each in rows(backend, given.orders, given.dtypes, given.batches, given.rounds):
            print(*(each[name] for name in COLUMNS[:9]), flush=True)
            writer.writerow(said | each)
            stream.flush()


if __name__ == "__main__":
    main()
