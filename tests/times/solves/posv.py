"""What factoring and solving at once takes: kernels that a rule could choose, for one and several right-hand sides.

    python -m tests.times.solves.posv --target avx512 avx2
    python -m tests.times.solves.posv --backend cuda

from the root of the repository write datasets/solves/posv_epyc.csv and datasets/solves/posv_h200.csv (--out FILE for
another). All kernels of a case are called in turn, on cold data; seconds a call, medians, checked; on a CPU the
thread's own time. `copy` is the share of the time that copying the compulsory bytes would take at the rate of the
machine's best copy. `chosen` is what `solve` uses; the family `two` has one kernel that factors and one that solves.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from batchchol import get_backend
from batchchol.backends import Backend
from batchchol.backends.base import Kernel
from batchchol.batches.batch import Batch
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.defaults.rules.fused import CHUNK_OF_WARPS, ONE_KERNEL, ONE_WARP, two_kernels
from batchchol.defaults.rules.pipelines import NB
from batchchol.measure.provenance import about
from batchchol.measure.solves import CHECKS, info_of, rotating_buffers
from batchchol.measure.timing import Sample
from batchchol.operations.roofline import compulsory_bytes
from batchchol.plan import TWO, factor_then_solve
from kernelgen import (
    SIMD_TARGETS,
    BlockSchedule,
    KernelSpec,
    Layout,
    Problem,
    SpecError,
    ThreadSchedule,
    WarpSchedule,
)

DATASETS = Path(__file__).parents[3] / "datasets"
CHOICES = ("nb", "rhs", "looking", "unroll", "prefetch", "staged", "threads", "stride", "pdl")
CHOICES_OF_WARPS = ("matrices", "warps", "teams", "update", "blocks")
CHOICES_OF_BLOCKS = ("lanes", "pipeline", "early", "spare", "fold", "ahead")
ALL_CHOICES = (*CHOICES, *CHOICES_OF_WARPS, *CHOICES_OF_BLOCKS)
COLUMNS = (
    *("backend", "target", "op", "n", "dtype", "batch", "nrhs", "layout", "math", "family", *ALL_CHOICES),
    *("chosen", "seconds", "spread"),
    *("ratio", "copy", "gpu", "driver", "toolkit", "cpu", "compiler", "version", "commit", "date"),
)
SAMPLES, WARM_UP = 15, 2
# Of batches with more rows than these fewer calls make a sample.
MANY_ROWS, FEW_CALLS = 1 << 22, 4
# Straight-line code of larger matrices is no faster on a CPU, and takes long to compile.
LONGEST_STRAIGHT = 16
LONGEST_ON_GPUS: Mapping[str, int] = {"float32": 28, "float64": 20}


Way = tuple[KernelSpec, ...]


class Case(NamedTuple):
    """Matrices and how many right-hand sides."""

    n: int
    dtype: str
    batch: int
    nrhs: int
    layout: Layout


class Series(NamedTuple):
    """What is timed on a backend: its cases (n, batch, nrhs), in which maths, and the choices of the kernels."""

    cases: Sequence[tuple[int, int, int]]
    maths: Sequence[str]
    choices: Sequence[Mapping[str, Any]]
    calls: int


SERIES: Mapping[str, Series] = {
    "cpu": Series(
        [(n, 16_384, nrhs) for n in (4, 8, 16, 24, 32, 48, 64) for nrhs in (1, 8)],
        ("ieee",),
        [
            {"nb": 2, "looking": "top"},
            {"nb": 3, "looking": "top"},
            {"nb": 4, "looking": "left"},
            {"nb": 4, "looking": "top"},
            {"nb": 4, "looking": "right"},
            {"nb": 4, "looking": "left", "prefetch": False},
            {"nb": 2, "looking": "top", "unroll": "full"},
            {"nb": 4, "looking": "left", "unroll": "full"},
        ],
        calls=1,
    ),
    "cuda": Series(
        [(n, batch, 1) for n in (4, 8, 16, 24, 32, 48, 64, 96, 128) for batch in (131_072, 16_384, 1_024)]
        + [(n, 16_384, 8) for n in (8, 16, 24)],
        ("fast", "ieee"),
        [
            {"nb": 1, "unroll": "full"},
            {"nb": 1, "unroll": "full", "staged": True},
            {"nb": 1, "unroll": "full", "staged": True, "threads": 128},
            {"nb": 1, "unroll": "full", "staged": True, "rhs": 4},
            {"nb": 8, "staged": True},
        ],
        calls=20,
    ),
}


# Teams of the warp family: matrices, teams of a block, blocks of a multiprocessor; those of two warps, by themselves.
TEAMS, LARGE_TEAMS = ((1, 2, 4), (1, 2, 8), (1, 8, 1), (2, 2, 4)), ((1, 1, 4),)
# Pipelines of the block family, which larger chunks are for: matrices, groups with panels, warps that solve. Strips
# of small chunks are faster at larger orders.
CHUNK_OF_BLOCKS, PIPELINES_FROM, PIPELINES_TO = 32, 20, 64
PIPELINES = ((32, 2, 2), (16, 2, 2), (16, 1, 2), (8, 2, 2))


def layouts(backend: Backend, target: str, n: int) -> tuple[Layout, ...]:
    """Chunks as large as a group of matrices that are worked on together, or of a block's warps, and arrays."""
    lanes = SIMD_TARGETS[target].lanes("float32") if target in SIMD_TARGETS else backend.lanes("float32")
    large = backend.name == "cuda" and n > ONE_KERNEL["float32"]
    chunks = (CHUNK_OF_WARPS,) if n > PIPELINES_TO else (CHUNK_OF_BLOCKS, CHUNK_OF_WARPS)
    chunks = chunks if large else (lanes,)
    return *map(Layout.chunked, chunks), Layout.canonical()


def asked_for(backend: Backend, target: str, case: Case, math: str, op: str = "posv") -> Request:
    """What `solve` asks the defaults for."""
    problem, arch = Problem(case.n, case.dtype, op=op, math=math), backend.architecture
    return Request(problem, target, batch=case.batch, arch=arch, device=backend.model).on(case.layout)


def kernels(backend: Backend, target: str, case: Case, math: str) -> list[Way]:
    """The kernels that are timed on matrices in a layout, one or two to a solve."""
    (n, layout), gpu = (case.n, case.layout), backend.name == "cuda"
    asked = asked_for(backend, target, case, math)
    problem, found, several = asked.problem, list[Way](), two_kernels(asked)
    if several:
        found.append(tuple(default_choice(asked_for(backend, target, case, math, op)).spec for op in TWO))
    else:
        found.append((default_choice(asked).spec,))
    schedules = list[Mapping[str, Any]]() if gpu and n > ONE_KERNEL["float32"] else SERIES[backend.name].choices
    for choice in schedules:
        straight = choice.get("unroll") == "full"
        if choice["nb"] > n or (straight and n > (LONGEST_ON_GPUS[case.dtype] if gpu else LONGEST_STRAIGHT)):
            continue
        more: Mapping[str, Any] = {"stride": layout.chunk, "pdl": True} if gpu else {}
        with suppress(SpecError):
            found.append((KernelSpec(problem, layout.kind, layout.order, ThreadSchedule(**choice, **more), target),))
    if gpu and PIPELINES_FROM <= n <= PIPELINES_TO:
        found += ((each,) for each in by_pipelines(problem, layout, target))
    warps = not several and isinstance(found[0][0].schedule, WarpSchedule)
    if gpu and (not schedules or warps):
        found += ((each,) for each in by_warps(problem, layout, target))
    return list(dict.fromkeys(found))


def by_warps(problem: Problem, layout: Layout, target: str) -> Iterator[KernelSpec]:
    """Teams of the warp family, as far as there are registers for them."""
    warps = 1 if problem.n <= ONE_WARP else 2
    for matrices, teams, blocks in TEAMS if warps == 1 else LARGE_TEAMS:
        with suppress(SpecError):
            schedule = WarpSchedule(matrices, warps, teams, blocks=blocks, stride=layout.chunk, pdl=True)
            yield KernelSpec(problem, layout.kind, layout.order, schedule, target)


def by_pipelines(problem: Problem, layout: Layout, target: str) -> Iterator[KernelSpec]:
    """Pipelines of the block family, as far as there is shared memory for them."""
    nb = -(-problem.n // -(-problem.n // NB[problem.dtype]))
    for lanes, pipeline, rhs in PIPELINES:
        if layout.chunk is None or layout.chunk % lanes == 0:
            with suppress(SpecError):
                schedule = BlockSchedule(nb, lanes, pipeline=pipeline, rhs=rhs, stride=layout.chunk, pdl=True)
                yield KernelSpec(problem, layout.kind, layout.order, schedule, target)


def loaded(backend: Backend, way: Way) -> Kernel:
    """What solves, called as one kernel."""
    return backend.kernel(way[0]) if len(way) == 1 else factor_then_solve(backend, *way)


def in_turn(backend: Backend, ways: Sequence[Way], a: Batch, nrhs: int) -> list[Sample]:
    """Samples of kernels that factor and solve: on a CPU in the thread's own time, whatever else the machine does."""
    b = np.random.default_rng(0).standard_normal((a.batch, a.n, nrhs)).astype(a.dtype)
    sets, status, taken = rotating_buffers(backend, a, b), info_of(backend, ways[0][0], a), []
    calls = SERIES[backend.name].calls if a.n * a.batch <= MANY_ROWS else FEW_CALLS
    solvers = [loaded(backend, way) for way in ways]
    for turn in range(WARM_UP + SAMPLES):
        bursts = []
        for place, solver in enumerate(solvers):
            first = (turn * len(ways) + place) * calls
            given = [sets[(first + call) % len(sets)] for call in range(calls)]
            bursts.append([partial(solver, *each, *status, threads=1) for each in given])
        taken.append(backend.in_turn(bursts, alone=True))
    seconds = zip(*taken[WARM_UP:], strict=True)
    maths = (way[0].problem.math for way in ways)
    ratios = [
        checked(backend, solver, sets[place % len(sets)], status, math)
        for place, (solver, math) in enumerate(zip(solvers, maths, strict=True))
    ]
    return [Sample(tuple(each), ratio, "queued", 0.0, {}) for each, ratio in zip(seconds, ratios, strict=True)]


def checked(backend: Backend, solver: Kernel, given: tuple[Any, ...], status: tuple[Any, ...], math: str) -> float:
    """The largest ratio of the solutions of one more call."""
    solver(*given, *status, threads=1)
    return CHECKS["posv"](*given, *status, math, samples=32, host=backend.host)


def rows(backend: Backend, target: str, wanted: Sequence[Case], maths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each case and kernel."""
    every = {(case, math): kernels(backend, target, case, math) for case in wanted for math in maths}
    start = time.perf_counter()
    specs = list(dict.fromkeys(spec for ways in every.values() for way in ways for spec in way))
    backend.build(specs)
    print(f"{len(specs)} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)
    for case in wanted:
        a = backend.empty(case.n, case.batch, case.layout, case.dtype)
        backend.fill(a, "diagonally_dominant")
        rate = backend.ceilings(case.dtype, 1).copy_bytes_per_second
        copying = case.batch * compulsory_bytes(case.n, case.layout, case.dtype, case.nrhs, "posv") / rate
        ways = [(way, not place) for math in maths for place, way in enumerate(every[case, math])]
        for (way, chosen), sample in zip(ways, in_turn(backend, [way for way, _ in ways], a, case.nrhs), strict=True):
            one = way[0] if len(way) == 1 else None
            yield {
                "backend": backend.name, "target": target, "op": "posv",
                **case._asdict(),
                "math": way[0].problem.math, "family": "two" if one is None else one.family,
                **{name: getattr(one and one.schedule, name, None) for name in ALL_CHOICES},
                "chosen": chosen,
                "seconds": f"{sample.median:.4g}", "spread": f"{sample.spread:.3f}", "ratio": f"{sample.ratio:.3f}",
                "copy": f"{copying / sample.median:.3f}",
            }  # fmt: skip


def cases(backend: Backend, target: str, given: argparse.Namespace) -> list[Case]:
    """Those of a series that are asked for, or all orders that are on all batches."""
    series = SERIES[backend.name].cases
    chosen = [each for each in series if each[0] in given.orders]
    if given.batches:
        chosen = [(n, batch, 1) for n in given.orders for batch in given.batches]
    return [
        Case(n, dtype, batch, nrhs, layout)
        for dtype in given.dtypes
        for n, batch, nrhs in chosen
        for layout in layouts(backend, target, n)
        if not given.batches or layout.chunk != CHUNK_OF_WARPS or n > PIPELINES_TO
    ]


def main() -> None:
    """Write the file, and print a line for each case: what is chosen, and the fastest."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.posv", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--backend", default="cpu", choices=SERIES)
    parser.add_argument("--target", nargs="+", help="SIMD instructions, the widest by default")
    parser.add_argument("--orders", type=int, nargs="+", default=(4, 8, 16, 24, 32, 48, 64, 96, 128))
    parser.add_argument("--batches", type=int, nargs="+", help="batch sizes, with one right-hand side a matrix")
    parser.add_argument("--dtypes", nargs="+", default=("float32",), choices=("float32", "float64"))
    parser.add_argument("--maths", nargs="+", choices=("fast", "ieee"), help="by default all that the backend has")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    backend = get_backend(given.backend)
    out = given.out or DATASETS / "solves" / {"cpu": "posv_epyc.csv", "cuda": "posv_h200.csv"}[backend.name]
    said = {name: value for name, value in about(backend).items() if name in COLUMNS}
    with out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for target in given.target or [backend.target]:
            for row in rows(
                backend, target, cases(backend, target, given), given.maths or SERIES[backend.name].maths
            ):
                writer.writerow(said | row)
                stream.flush()
                if row["chosen"]:
                    case = (row[name] for name in ("n", "dtype", "batch", "nrhs", "layout", "math"))
                    print(*case, f"{1e6 * float(row['seconds']):.2f} us, {row['copy']} of a copy", flush=True)


if __name__ == "__main__":
    main()
