"""For which sizes of pivots `math="fast"` keeps its promise: the largest residual ratio at each power of two.

    python -m tests.times.scale_ratios --backend cuda --out datasets/accuracy/scale_h200.csv
    python -m tests.times.scale_ratios --backend cpu --out datasets/accuracy/scale_xeon.csv

Wishart matrices, whose pivots are about 1, times 2^exponent, through kernels of every family, or of every target of
the CPU; of order 1 at exponent 0, 2^20 significands. Every row is a kernel, an exponent, the number of matrices, how
many of them failed, and the largest ratio of the others.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.artifacts.c_library import supported_targets
from batchchol.backends import Backend, get_backend
from batchchol.operations.residual import ratios
from kernelgen import KernelSpec

from ..kernel_runs import layout_of, make_spec

COLUMNS = ("kernel", "exponent", "matrices", "failed", "ratio")
# Dense where `fast` loses its promise, and what `ieee` needs.
EXPONENTS = {
    "float32": (*range(-146, -92, 2), *range(-92, 128, 12)),
    "float64": (*range(-1070, -950, 10), *range(-950, 1024, 140)),
}
# Small orders have the largest ratios, and take many matrices to find them.
SMALL, FEW, MANY = 3, 100, 4_000
SIGNIFICANDS = 1 << 20
LARGE_N = 37
GPU_FAMILIES: tuple[dict[str, Any], ...] = (
    {"family": "thread", "nb": 4},
    {"family": "shared", "nb": 8, "looking": "left", "matrices": 2},
    {"family": "block", "nb": 8, "lanes": 8, "pipeline": 1, "early": 1},
    {"family": "warp", "matrices": 2, "update": "tensor"},
    {"family": "warp", "matrices": 2, "update": "fma"},
    {"family": "strip", "warps": 6, "ahead": 1, "stride": 4},
)


def gpu_specs() -> list[KernelSpec]:
    """Of every family, and the straight-line code of small matrices; `ieee` of one kernel beside it."""
    small = [(n, math, dtype) for n in range(1, SMALL + 1) for math in ("fast", "ieee") for dtype in EXPONENTS]
    return [
        *(make_spec(n, n, unroll="full", math=math, dtype=dtype, target="cuda") for n, math, dtype in small),
        *(make_spec(LARGE_N, **family, math="fast", target="cuda") for family in GPU_FAMILIES),
        make_spec(LARGE_N, **GPU_FAMILIES[2], math="ieee", target="cuda"),
        make_spec(LARGE_N, family="block", nb=4, lanes=8, math="fast", dtype="float64", target="cuda"),
    ]


def cpu_specs() -> list[KernelSpec]:
    """Of every target that this CPU has."""
    return [
        make_spec(n, min(n, 4), math=math, dtype=dtype, target=target)
        for n in (1, 2, 3, LARGE_N)
        for target in supported_targets()
        for math in ("fast", "ieee")
        for dtype in EXPONENTS
    ]


def matrices(n: int, exponent: int, dtype: str) -> NDArray[Any]:
    """Wishart matrices times 2^exponent; of order 1 at exponent 0, significands evenly spaced over [1, 4)."""
    if n == 1 and exponent == 0:
        return np.linspace(1, 4, SIGNIFICANDS, endpoint=False, dtype=dtype)[:, None, None]
    normal = np.random.default_rng((n, exponent + 2000)).standard_normal((MANY if n <= SMALL else FEW, n, 2 * n))
    return np.asarray(np.ldexp(normal @ normal.swapaxes(1, 2) / (2 * n), exponent).astype(dtype))


def measure(backend: Backend, spec: KernelSpec, exponent: int) -> dict[str, object]:
    """A row: a kernel on the matrices of an exponent."""
    dtype = spec.problem.dtype
    a = matrices(spec.problem.n, exponent, dtype)
    batch = backend.from_dense(a, layout_of(spec, spec.schedule.stride))
    result, info = batch.like(), backend.info(batch, spec)
    backend.kernel(spec)(batch, result, info, threads=1)
    good = np.asarray(backend.host(info))[: len(a)] == 0
    # The other triangle is not written: what it holds may be a signaling NaN.
    l = np.tril(np.asarray(backend.host(result.to_dense()))[good]).astype(np.float64)
    # Exact, and the ratio of numbers that are far from denormal in float64 too.
    unscaled = np.ldexp(l, -(exponent // 2))
    seen = ratios(np.ldexp(a[good].astype(np.float64), -(exponent // 2) * 2), unscaled, dtype)
    largest = f"{seen.max():.3f}" if len(seen) else ""
    return dict(zip(COLUMNS, (spec.name, exponent, len(a), int((~good).sum()), largest), strict=True))


def rows(backend: Backend, specs: Sequence[KernelSpec]) -> Iterator[dict[str, object]]:
    """Of every kernel and exponent; order 1 has its significands, too."""
    for spec in specs:
        for exponent in sorted({0, *EXPONENTS[spec.problem.dtype]}):
            yield measure(backend, spec, exponent)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.times.scale_ratios", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--backend", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    arguments = parser.parse_args(argv)
    backend = get_backend(arguments.backend)
    specs = gpu_specs() if arguments.backend == "cuda" else cpu_specs()
    backend.build(specs)
    with arguments.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(backend, specs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
