"""What factoring and solving at once takes: kernels that a rule could choose, for one and several right-hand sides.

    python -m tests.posv_times --target avx512 avx2
    python -m tests.posv_times --backend cuda

from the root of the repository write datasets/posv_epyc.csv and datasets/posv_h200.csv (--out FILE for another). All
kernels of a case are called in turn, on cold data; seconds a call, medians, checked; on a CPU the thread's own time.
`copy` is the share of the time that copying the compulsory bytes would take at the rate of the machine's best copy.
`chosen` is the kernel that `solve` uses, where one kernel does both.
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
from batchchol.batches.batch import Batch
from batchchol.defaults.fused import CHUNK_OF_WARPS, ONE_KERNEL, ONE_WARP, two_kernels
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.measure.provenance import about
from batchchol.measure.solves import CHECKS, info_of, rotating_buffers
from batchchol.measure.timing import Sample
from batchchol.operations.roofline import compulsory_bytes
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

DATASETS = Path(__file__).parents[1] / "datasets"
CHOICES = ("nb", "rhs", "looking", "unroll", "prefetch", "staged", "threads", "stride", "pdl")
CHOICES_OF_WARPS = ("matrices", "warps", "teams", "update", "blocks")
CHOICES_OF_BLOCKS = ("lanes", "pipeline", "early", "spare", "fold")
ALL_CHOICES = (*CHOICES, *CHOICES_OF_WARPS, *CHOICES_OF_BLOCKS)
COLUMNS = (
    *("backend", "target", "op", "n", "batch", "nrhs", "layout", "math", "family", *ALL_CHOICES),
    *("chosen", "seconds", "spread"),
    *("ratio", "copy", "gpu", "driver", "toolkit", "cpu", "compiler", "version", "commit", "date"),
)
SAMPLES, WARM_UP = 15, 2
# Of batches with more rows than these fewer calls make a sample.
MANY_ROWS, FEW_CALLS = 1 << 22, 4
# Straight-line code of larger matrices is no faster on a CPU, and takes long to compile.
LONGEST_STRAIGHT = 16


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
# Pipelines of the block family, which larger chunks are for: matrices, groups with panels, warps that solve.
CHUNK_OF_BLOCKS, PIPELINES_FROM = 32, 24
PIPELINES = ((32, 2, 2), (16, 2, 2), (16, 1, 2), (8, 2, 2))


def layouts(backend: Backend, target: str, n: int) -> tuple[Layout, ...]:
    """Chunks as large as a group of matrices that are worked on together, or of a block's warps, and arrays."""
    lanes = SIMD_TARGETS[target].lanes("float32") if target in SIMD_TARGETS else backend.lanes("float32")
    large = backend.name == "cuda" and n > ONE_KERNEL["float32"]
    chunks = (CHUNK_OF_BLOCKS, CHUNK_OF_WARPS) if large else (lanes,)
    return *map(Layout.chunked, chunks), Layout.canonical()


def chosen(backend: Backend, target: str, n: int, batch: int, layout: Layout, math: str) -> KernelSpec | None:
    """The kernel that `solve` takes, if it is one."""
    problem, where = Problem(n, op="posv", math=math), {"arch": backend.architecture, "device": backend.model}
    asked = Request(problem, target, batch=batch, **where).on(layout)
    return None if two_kernels(asked) else default_choice(asked).spec


def kernels(backend: Backend, target: str, n: int, batch: int, layout: Layout, math: str) -> list[KernelSpec]:
    """The kernels that are timed on matrices in a layout."""
    problem, gpu = Problem(n, op="posv", math=math), backend.name == "cuda"
    first = chosen(backend, target, n, batch, layout, math)
    found: list[KernelSpec] = [] if first is None else [first]
    schedules = list[Mapping[str, Any]]() if gpu and n > ONE_KERNEL["float32"] else SERIES[backend.name].choices
    for choice in schedules:
        straight = choice.get("unroll") == "full"
        if choice["nb"] > n or (straight and not gpu and n > LONGEST_STRAIGHT):
            continue
        more: Mapping[str, Any] = {"stride": layout.chunk, "pdl": True} if gpu else {}
        with suppress(SpecError):
            found.append(KernelSpec(problem, layout.kind, layout.order, ThreadSchedule(**choice, **more), target))
    if gpu and n >= PIPELINES_FROM:
        found += by_pipelines(problem, layout, target)
    if gpu and (not schedules or (first is not None and isinstance(first.schedule, WarpSchedule))):
        found += by_warps(problem, layout, target)
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
    for lanes, pipeline, rhs in PIPELINES:
        if layout.chunk is None or layout.chunk % lanes == 0:
            with suppress(SpecError):
                schedule = BlockSchedule(8, lanes, pipeline=pipeline, rhs=rhs, stride=layout.chunk, pdl=True)
                yield KernelSpec(problem, layout.kind, layout.order, schedule, target)


def in_turn(backend: Backend, specs: Sequence[KernelSpec], a: Batch, nrhs: int) -> list[Sample]:
    """Samples of kernels that factor and solve: on a CPU in the thread's own time, whatever else the machine does."""
    b = np.random.default_rng(0).standard_normal((a.batch, a.n, nrhs)).astype(a.dtype)
    sets, status, taken = rotating_buffers(backend, a, b), info_of(backend, specs[0], a), []
    calls = SERIES[backend.name].calls if a.n * a.batch <= MANY_ROWS else FEW_CALLS
    for turn in range(WARM_UP + SAMPLES):
        bursts = []
        for place, spec in enumerate(specs):
            first = (turn * len(specs) + place) * calls
            given = [sets[(first + call) % len(sets)] for call in range(calls)]
            bursts.append([partial(backend.kernel(spec), *each, *status, threads=1) for each in given])
        taken.append(backend.in_turn(bursts, alone=True))
    seconds = zip(*taken[WARM_UP:], strict=True)
    ratios = [checked(backend, spec, sets[place % len(sets)], status) for place, spec in enumerate(specs)]
    return [Sample(tuple(each), ratio, "queued", 0.0, {}) for each, ratio in zip(seconds, ratios, strict=True)]


def checked(backend: Backend, spec: KernelSpec, given: tuple[Any, ...], status: tuple[Any, ...]) -> float:
    """The largest ratio of the solutions of one more call."""
    backend.kernel(spec)(*given, *status, threads=1)
    return CHECKS["posv"](*given, *status, spec.problem.math, samples=32, host=backend.host)


def rows(backend: Backend, target: str, orders: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row for each case and kernel."""
    series = SERIES[backend.name]
    cases = [
        (*case, layout) for case in series.cases for layout in layouts(backend, target, case[0]) if case[0] in orders
    ]
    every = {
        (n, batch, layout, math): kernels(backend, target, n, batch, layout, math)
        for n, batch, _, layout in cases
        for math in series.maths
    }
    start = time.perf_counter()
    backend.build([spec for specs in every.values() for spec in specs])
    print(f"{sum(map(len, every.values()))} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)
    for n, batch, nrhs, layout in cases:
        a = backend.empty(n, batch, layout)
        backend.fill(a, "diagonally_dominant")
        rate = backend.ceilings("float32", 1).copy_bytes_per_second
        copying = batch * compulsory_bytes(n, layout, "float32", nrhs, "posv") / rate
        specs = [spec for math in series.maths for spec in every[n, batch, layout, math]]
        for spec, sample in zip(specs, in_turn(backend, specs, a, nrhs), strict=True):
            yield {
                "backend": backend.name, "target": target, "op": "posv", "n": n, "batch": batch, "nrhs": nrhs,
                "layout": str(layout), "math": spec.problem.math,
                "family": spec.family,
                **{name: getattr(spec.schedule, name, None) for name in ALL_CHOICES},
                "chosen": spec == chosen(backend, target, n, batch, layout, spec.problem.math),
                "seconds": f"{sample.median:.4g}", "spread": f"{sample.spread:.3f}", "ratio": f"{sample.ratio:.3f}",
                "copy": f"{copying / sample.median:.3f}",
            }  # fmt: skip


def main() -> None:
    """Write the file, and print a line for each case: what is chosen, and the fastest."""
    parser = argparse.ArgumentParser(prog="python -m tests.posv_times", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="cpu", choices=SERIES)
    parser.add_argument("--target", nargs="+", help="SIMD instructions, the widest by default")
    parser.add_argument("--orders", type=int, nargs="+", default=(4, 8, 16, 24, 32, 48, 64, 96, 128))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    backend = get_backend(given.backend)
    out = given.out or DATASETS / {"cpu": "posv_epyc.csv", "cuda": "posv_h200.csv"}[backend.name]
    said = {name: value for name, value in about(backend).items() if name in COLUMNS}
    with out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for target in given.target or [backend.target]:
            for row in rows(backend, target, given.orders):
                writer.writerow(said | row)
                stream.flush()
                if row["chosen"]:
                    case = (row[name] for name in ("n", "batch", "nrhs", "layout", "math"))
                    print(*case, f"{1e6 * float(row['seconds']):.2f} us, {row['copy']} of a copy", flush=True)


if __name__ == "__main__":
    main()
