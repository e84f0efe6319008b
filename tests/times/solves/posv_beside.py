"""What the library's kernels of `posv` and cuSOLVERDx's take in turn, in one process, on an H200 or the like.

    python -m tests.times.solves.posv_beside --nrhs 8 --orders 8 16 24 32 48 64 --batches 16384 1024 \\
        --dtype float64 --out datasets/solves/posv_beside_h200.csv

Kernels that the library chooses for packed matrices and arrays, and the likeliest blocks of cuSOLVERDx, on cold data,
queued; seconds a call, medians, checked; `--early` has those of cuSOLVERDx launched before others have ended, as ours
are. `floor_seconds` is what a kernel takes that does nothing and is launched in the same way. Rows are added to a
file that is there. `compare --op posv` asks the same, and takes longer: it times one after the other, and calls on
arrays too.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from batchchol import get_backend
from batchchol.backends.cuda.device import device
from batchchol.batches.batch import Batch
from batchchol.compare.defaults import default_specs
from batchchol.compare.peers import cusolverdx
from batchchol.errors import BatchcholError
from batchchol.measure.provenance import about
from batchchol.measure.solves import CHECKS, info_of, rotating_buffers
from batchchol.plan import factor_then_solve
from kernelgen import Layout, Problem, SpecError
from kernelgen.emit.source import Launch
from kernelgen.emit.support import support_kernel

DATASETS = Path(__file__).parents[3] / "datasets"
COLUMNS = (
    "op",
    "library",
    "n",
    "nrhs",
    "batch",
    "dtype",
    "math",
    "layout",
    "seconds",
    "spread",
    "floor_seconds",
    "ratio",
    "kernel",
)
SAID = ("gpu", "driver", "toolkit", "commit", "date", "peer")
SAMPLES, WARM_UP, MEMBERS = 7, 2, 48
# Calls of a sample: long enough together that the clock's step is nothing, 20 us or more each.
FEW_CALLS, MANY_CALLS, MANY_ELEMENTS = 4, 20, 1 << 22

FLOOR = "floor"

Sets = Sequence[tuple[Any, ...]]


class Asked(NamedTuple):
    """Matrices and how many right-hand sides of each."""

    n: int
    batch: int
    nrhs: int
    dtype: str


class Contender(NamedTuple):
    """What solves, by calls on sets of arrays, and how that is checked."""

    name: str
    kernel: str
    math: str
    layout: Layout
    sets: Sets
    status: tuple[Any, ...]
    run: Callable[..., Any]
    early: bool

    def calls(self, first: int, number: int) -> list[Callable[[], Any]]:
        """Calls on one set after the other."""
        return [
            partial(self.run, *self.sets[(first + each) % len(self.sets)], *self.status) for each in range(number)
        ]

    def checked(self, backend: Any) -> float:
        """The largest ratio of the solutions of one more call; of the floor, which solves nothing, none."""
        if self.name == FLOOR:
            return 0
        self.run(*self.sets[0], *self.status)
        return CHECKS["posv"](*self.sets[0], *self.status, self.math, samples=MEMBERS, host=backend.host)


def ours(backend: Any, asked: Asked, a: Batch, b: Any, maths: Sequence[str]) -> Iterator[Contender]:
    """The kernels that the library chooses for arrays and for packed matrices; `a` are the arrays."""
    arrays = rotating_buffers(backend, a, b)
    for math in maths:
        packed = backend.default_layout(asked.n, asked.dtype, asked.batch, math)
        for name, layout in (("packed", packed), ("arrays", a.layout)):
            problem = Problem(asked.n, asked.dtype, op="posv", math=math)
            try:
                specs = default_specs(backend, problem, asked.batch, layout, asked.nrhs)
            except SpecError:
                continue
            sets = arrays if layout == a.layout else rotating_buffers(backend, backend.from_dense(a.data, layout), b)
            status = info_of(backend, specs[0], sets[0][0])
            kernel = backend.kernel(specs[0]) if len(specs) == 1 else factor_then_solve(backend, *specs)
            names = " + ".join(spec.name for spec in specs)
            early = all(spec.schedule.pdl for spec in specs)
            yield Contender(name, names, math, layout, sets, status, partial(kernel, threads=1), early)


def theirs(backend: Any, asked: Asked, arrays: Sets, blocks: int, *, early: bool) -> Iterator[Contender]:
    """Blocks of cuSOLVERDx, on the same arrays."""
    what = cusolverdx._What(asked.nrhs, pdl=early)
    info = backend.place(np.full(asked.batch, -1, np.int32))
    for shape in cusolverdx.shapes(asked.n, asked.dtype, device().architecture, what)[:blocks]:
        try:
            function = cusolverdx._function(shape)
        except BatchcholError as error:
            print(f"no {shape.entry}: {error}", flush=True)
            continue

        def run(a: Batch, b: Any, x: Any, info: Any, function: Any = function) -> None:
            addresses = (a.address, *(int(each.gpudata) for each in (b, x, info)), asked.batch)
            device().run(function, asked.batch, addresses)

        said = cusolverdx._said(shape)
        kernel = f"posv of a block, {said}"
        yield Contender("cusolverdx", kernel, "ieee", Layout.canonical(), arrays, (info,), run, early)


def floors() -> Iterator[Contender]:
    """A kernel that does nothing, launched when the one before has ended, and early."""
    for kernel, pdl in (("empty", False), ("empty, early", True)):
        source = support_kernel("empty")
        source = replace(source, launch=replace(cast(Launch, source.launch), pdl=pdl))
        run = partial(device().launch, source, 1, ())
        yield Contender(FLOOR, kernel, "ieee", Layout.canonical(), ((),), (), run, pdl)


def contenders(backend: Any, asked: Asked, maths: Sequence[str], blocks: int, *, early: bool) -> list[Contender]:
    """All that solve these."""
    a = backend.empty(asked.n, asked.batch, Layout.canonical(), asked.dtype)
    backend.fill(a, "diagonally_dominant")
    b = np.random.default_rng(0).standard_normal((asked.batch, asked.n, asked.nrhs), dtype=asked.dtype)
    found = list(ours(backend, asked, a, b, maths))
    arrays = next(each.sets for each in found if each.name == "arrays")
    peers = theirs(backend, asked, arrays, blocks, early=early) if blocks else ()
    return [*found, *peers, *floors()]


def rows(
    backend: Any, asked: Asked, maths: Sequence[str], blocks: int, *, early: bool = False
) -> Iterator[dict[str, Any]]:
    """A row for each contender, all of which are called in turn."""
    found, taken = contenders(backend, asked, maths, blocks, early=early), []
    ratios = [each.checked(backend) for each in found]
    calls = FEW_CALLS if asked.n**2 * asked.batch > MANY_ELEMENTS else MANY_CALLS
    for turn in range(WARM_UP + SAMPLES):
        bursts = [each.calls((turn * len(found) + place) * calls, calls) for place, each in enumerate(found)]
        taken.append(backend.in_turn(bursts, alone=True))
    taken = [sorted(seconds) for seconds in zip(*taken[WARM_UP:], strict=True)]
    medians = [middle[len(middle) // 2] for middle in taken]
    floor = {each.early: median for each, median in zip(found, medians, strict=True) if each.name == FLOOR}
    for each, ratio, middle, median in zip(found, ratios, taken, medians, strict=True):
        yield {
            "op": "posv", "library": each.name, **asked._asdict(), "math": each.math, "layout": str(each.layout),
            "seconds": f"{median:.4g}", "spread": f"{(middle[-2] - middle[1]) / median:.3f}",
            "floor_seconds": f"{floor[each.early]:.4g}", "ratio": f"{ratio:.3f}", "kernel": each.kernel,
        }  # fmt: skip


def said_of(row: dict[str, Any]) -> str:
    """Such as "packed fast 24.6 us"."""
    return f"{row['library']} {row['math']} {1e6 * float(row['seconds']):.2f} us"


def main() -> None:
    """Add rows to the file, and print a line for each case."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.posv_beside", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--orders", type=int, nargs="+", default=(8, 16, 24, 32, 48, 64, 96, 128))
    parser.add_argument("--batches", type=int, nargs="+", default=(131_072, 16_384, 1_024))
    parser.add_argument("--nrhs", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--maths", nargs="+", default=("ieee",), choices=("fast", "ieee"))
    parser.add_argument("--blocks", type=int, default=3, help="of cuSOLVERDx, the likeliest (default: %(default)s)")
    parser.add_argument("--early", action="store_true", help="have cuSOLVERDx's kernels launched early")
    parser.add_argument(
        "--seconds", type=float, default=600, help="after which no case begins (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=DATASETS / "solves" / "posv_beside_h200.csv")
    given, begin = parser.parse_args(), time.monotonic()
    backend = get_backend("cuda")
    said = {name: value for name, value in about(backend).items() if name in SAID} | {"peer": cusolverdx.version()}
    new = not given.out.exists()
    with given.out.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, (*COLUMNS, *SAID), lineterminator="\n")
        if new:
            writer.writeheader()
        for asked in (Asked(n, batch, given.nrhs, given.dtype) for n in given.orders for batch in given.batches):
            if time.monotonic() - begin > given.seconds:
                print("no time for", *asked, flush=True)
                continue
            found = list(rows(backend, asked, given.maths, given.blocks, early=given.early))
            writer.writerows(row | said for row in found)
            stream.flush()
            print(*asked, "; ".join(map(said_of, found)), flush=True)


if __name__ == "__main__":
    main()
