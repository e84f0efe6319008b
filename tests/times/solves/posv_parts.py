"""What kernels of `posv` take without parts of their work, and `potrf` without its writes, on a GPU.

    python -m tests.times.solves.posv_parts [--out datasets/solves/posv_parts_h200.csv]
    python -m tests.times.solves.posv_parts --build 8

Kernels of changed texts, whose results are wrong, in turn with the right ones: 131,072 float32 matrices, cold data,
queued; seconds a call, medians. Without `memory` blocks read their first matrices again and again. Parts overlap:
without one a kernel takes what it would if that part were free. `--build` compiles them, with that
many jobs, and needs no GPU.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from batchchol import default_spec, get_backend
from batchchol.artifacts.cuda_modules import build_all
from batchchol.defaults.request import Request
from batchchol.defaults.rules.fused import by_warps
from batchchol.defaults.rules.pipelines import by_blocks
from batchchol.measure.provenance import about
from batchchol.measure.solves import info_of, rotating_buffers
from batchchol.measure.timing import CACHES
from kernelgen import KernelSource, KernelSpec, Layout, Problem, generate

DATASETS = Path(__file__).parents[3] / "datasets"
ARCH, BATCH, CALLS, SAMPLES, WARM_UP = "sm_90", 131_072, 3, 9, 2
COLUMNS = ("op", "n", "batch", "layout", "math", "dtype", "without", "seconds", "spread", "kernel")
SAID = ("gpu", "driver", "toolkit", "commit", "date")

# Patterns of a text, and what they become.
Edits = tuple[tuple[str, str], ...]
NO_BACKWARD = (r"solve_backward\(own, tiles[^;]*;", ";")
NO_FORWARD = (r"solve_forward\(own, tiles[^;]*;", ";")
NO_UPDATES = (r"update\(c, diagonal[^;]*;", ";")
# What has been read has to be used.
KEPT = r"""vec kept = 0;
#pragma unroll
            for (int i = 0; i < NB; ++i)
#pragma unroll
                for (int j = 0; j < NB; ++j)
                    kept += c[i][j];
            if (kept == 1e30f)
                info[0] = 1;
            continue;
        """
# What a block reads is in the L2 from its first group on.
NEAR = (r"(?<=a \+ matrix_start\()(matrix|later)(?=, )", r"\1 % (gridDim.x * LANES)")
BLOCKS: Mapping[str, Edits] = {
    "memory": (NEAR,),
    "backward": (NO_BACKWARD,),
    "solves": (NO_BACKWARD, NO_FORWARD),
    "solves, updates": (NO_BACKWARD, NO_FORWARD, NO_UPDATES),
    "all but reads": (
        (r"#pragma unroll 1\n        for \(int k = 0;; \+\+k\) \{", rf"        {KEPT}\g<0>"),
        (r"return solve_groups\(warp[^;]*;", "return;"),
    ),
}
WARPS: Mapping[str, Edits] = {
    "backward": ((r"(?<=\n)    solve_backward\(own, row\);", ""),),
    "solves": ((r"(?<=\n)    solve_backward\(own, row\);", ""), (r"take_forward\(own, y, x, row, k\);", ";")),
}
WRITES: Mapping[str, Edits] = {"writes": ((r"write_tile\(PLACE_OF_TILE\(l[^;]*;", ";"),)}


class Case(NamedTuple):
    """An operation on matrices in a layout, and what its kernel is timed without."""

    op: str
    n: int
    chunk: int | None
    math: str
    parts: Mapping[str, Edits]

    @property
    def layout(self) -> Layout:
        """Where the matrices are."""
        return Layout.canonical() if self.chunk is None else Layout.chunked(self.chunk)

    @property
    def spec(self) -> KernelSpec:
        """The kernel of blocks, or of warps, where threads that share rows may be the default; of `potrf` that."""
        layout = self.layout
        plain = Request(Problem(self.n, op=self.op, math=self.math), "cuda", batch=BATCH, arch=ARCH).on(layout).plain
        if self.parts is BLOCKS:
            return cast(KernelSpec, by_blocks(plain, self.chunk, ARCH))
        if self.parts is WARPS:
            return cast(KernelSpec, by_warps(plain, self.chunk, ARCH, BATCH))
        return default_spec(
            self.n, op=self.op, target="cuda", layout=layout.kind, order=layout.order, chunk=layout.chunk,
            math=self.math, arch=ARCH, batch=BATCH,
        )  # fmt: skip


CASES = (
    *(Case("posv", n, 32, "fast", BLOCKS) for n in (32, 48, 64)),
    *(Case("posv", 64, None, math, WARPS) for math in ("ieee", "fast")),
    *(Case("potrf", n, chunk, "fast", WRITES) for n, chunk in ((32, 32), (48, 16), (64, 16))),
)


def sources(case: Case) -> Iterator[tuple[str, KernelSource]]:
    """The kernel, and those without a part by its name."""
    whole = generate(case.spec)
    yield "", whole
    for name, edits in case.parts.items():
        text = whole.text
        for pattern, instead in edits:
            text, changed = re.subn(pattern, instead, text)
            if not changed:
                raise ValueError(f"{whole.entry} has no {pattern}")
        yield name, replace(whole, text=text)


def in_turn(backend: Any, case: Case, kernels: Sequence[Any]) -> list[list[float]]:
    """Seconds of calls of each kernel, on cold data."""
    a = backend.empty(case.n, BATCH, case.layout, "float32")
    backend.fill(a, "diagonally_dominant")
    status = info_of(backend, case.spec, a)
    if case.op == "posv":
        b = np.random.default_rng(0).standard_normal((BATCH, case.n, 1)).astype(np.float32)
        sets: Sequence[tuple[Any, ...]] = rotating_buffers(backend, a, b)
    else:
        copies = -(-CACHES * backend.last_level_cache_bytes() // (2 * a.nbytes))
        sets = [(a.copy() if index else a, a.like()) for index in range(max(copies, 2))]
    taken = []
    for turn in range(WARM_UP + SAMPLES):
        first = turn * len(kernels) * CALLS
        bursts = [
            [
                partial(kernel, *sets[(first + place * CALLS + call) % len(sets)], *status, threads=1)
                for call in range(CALLS)
            ]
            for place, kernel in enumerate(kernels)
        ]
        taken.append(backend.in_turn(bursts, alone=True))
    return [sorted(seconds) for seconds in zip(*taken[WARM_UP:], strict=True)]


def rows(backend: Any) -> Iterator[dict[str, Any]]:
    """A row for each case and part."""
    for case in CASES:
        named = list(sources(case))
        kernels = [backend.kernel_of(case.spec, source, source.launch) for _, source in named]
        for (name, source), seconds in zip(named, in_turn(backend, case, kernels), strict=True):
            median = seconds[len(seconds) // 2]
            spread = (seconds[-2] - seconds[1]) / median
            yield {
                "op": case.op, "n": case.n, "batch": BATCH, "layout": str(case.layout), "math": case.math,
                "dtype": "float32", "without": name, "seconds": f"{median:.4g}", "spread": f"{spread:.3f}",
                "kernel": source.entry,
            }  # fmt: skip


def main() -> None:
    """Write the file, and print a line for each row."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.solves.posv_parts", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=DATASETS / "solves" / "posv_parts_h200.csv")
    parser.add_argument("--build", type=int, metavar="JOBS", help="compile the kernels, and end")
    given = parser.parse_args()
    every = [source for case in CASES for _, source in sources(case)]
    built = build_all(every, ARCH, jobs=given.build, per_module=1)
    print(f"{sum(outcome.status == 'built' for outcome in built)} of {len(every)} kernels are there", flush=True)
    if given.build:
        return
    backend = get_backend("cuda")
    said = {name: value for name, value in about(backend).items() if name in SAID}
    with given.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, (*COLUMNS, *SAID), lineterminator="\n")
        writer.writeheader()
        for row in rows(backend):
            writer.writerow(row | said)
            stream.flush()
            what = f"without {row['without']}" if row["without"] else ""
            print(
                row["op"],
                row["n"],
                row["layout"],
                row["math"],
                f"{1e6 * float(row['seconds']):.0f} us",
                what,
                flush=True,
            )


if __name__ == "__main__":
    main()
