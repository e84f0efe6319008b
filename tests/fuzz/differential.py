"""Differential fuzzing of the CPU's kernels: a million random matrices against LAPACK.

    python -m tests.fuzz.differential [--matrices 1000000] [--seed 0] [--seconds 3600] [--case 17]

A case is a random kernel (order, schedule, layout, dtype, math, triangle, target) and a few batches in which
matrices of all kinds of `tests.matrix_kinds` are mixed. Checked are: info, against LAPACK's wherever rounding cannot
decide; the componentwise residual; no NaN in a factor whose info is 0; the bits of the good matrices beside others;
what the triangle that was not asked for, the padding, the input and the bytes around all arrays hold. A case depends
on the seed and its number alone: `--case` repeats one. The exit status is 1 after a failure, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.artifacts.c_library import supported_targets
from batchchol.backends import Kernel
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import MAX_N, KernelSpec, SpecError

from ..kernel_runs import check_other_triangle, kernel_of, make_spec, run_kernel
from ..matrix_kinds import FLUSHED_KINDS, KINDS, certain, lapack_info, make

Array = NDArray[Any]

BATCHES = 4
# Elements of a batch: small orders have thousands of matrices in it, large ones some of each kind.
ELEMENTS = 300_000
MOST, FEWEST = 4_000, 40
# Straight-line code of larger orders takes minutes to compile.
MOST_UNROLLED = 20
PROGRESS_SECONDS = 10.0


class Mismatch(Exception):
    """What a kernel made is not what LAPACK makes, or not in its place."""


@dataclass
class Totals:
    """What was done so far: matrices, and the largest residual ratio for each target, dtype and math."""

    cases: int = 0
    matrices: int = 0
    largest: dict[tuple[str, str, str], float] = field(default_factory=dict)


def random_spec(random: np.random.Generator, op: str = "potrf") -> KernelSpec:
    """Any kernel of the CPU for an operation; small orders more often than large ones."""
    while True:
        n = 1 + int(MAX_N * random.random() ** 3)
        choices: dict[str, Any] = {
            "looking": _one(random, "right", "left", "top"),
            "unroll": _one(random, "tiles", "full") if n <= MOST_UNROLLED else "tiles",
            "math": _one(random, "ieee", "fast"),
            "dtype": _one(random, "float32", "float64"),
            "uplo": _one(random, "lower", "upper"),
            "layout": _one(random, "canonical", "interleaved", "chunked"),
            "order": _one(random, "row", "col"),
            "target": _one(random, *supported_targets()),
            "prefetch": _one(random, True, False),
            "staged": _one(random, True, False),
            "in_place": _one(random, True, False),
        }
        try:
            return make_spec(n, int(random.integers(1, min(n, 8) + 1)), op=op, **choices)
        except SpecError:
            continue


def _one(random: np.random.Generator, *values: Any) -> Any:
    return values[random.integers(len(values))]


def run_case(seed: int, case: int, totals: Totals) -> None:
    """Check one kernel on its batches.

    Raises
    ------
    Mismatch
        If something is wrong; says what, and of which kernel and matrix.
    """
    random = np.random.default_rng((seed, case))
    spec = random_spec(random)
    kernel = kernel_of(spec)
    for batch in range(BATCHES):
        size = int(random.integers(1, min(MOST, max(FEWEST, ELEMENTS // spec.problem.n**2)) + 1))
        kinds, a = mixed_batch(random, size, spec)
        try:
            largest = check_batch(random, spec, kernel, kinds, a)
        except (AssertionError, Mismatch) as error:
            raise Mismatch(f"batch {batch} of {size}: {error}") from error
        key = (spec.target, spec.problem.dtype, spec.problem.math)
        totals.largest[key] = max(totals.largest.get(key, 0.0), largest)
        totals.matrices += size
    totals.cases += 1


def mixed_batch(random: np.random.Generator, size: int, spec: KernelSpec) -> tuple[NDArray[np.str_], Array]:
    """Matrices of random kinds in random places, and of which kind each is."""
    kinds = random.choice(sorted(KINDS), size)
    a = np.empty((size, spec.problem.n, spec.problem.n), spec.problem.dtype)
    for kind in np.unique(kinds):
        a[kinds == kind] = make(str(kind), random, int((kinds == kind).sum()), spec.problem.n, spec.problem.dtype)
    return kinds, a


def check_batch(
    random: np.random.Generator, spec: KernelSpec, kernel: Kernel, kinds: NDArray[np.str_], a: Array
) -> float:
    """The largest residual ratio of a batch that a kernel factored as it should."""
    chunk = spec.lanes * int(random.integers(1, 4)) if spec.layout == "chunked" else None
    where = {"threads": int(random.integers(1, 4)), "offset": a.itemsize * int(random.integers(0, 3))}
    result = run_kernel(spec, a, chunk, kernel=kernel, **where)
    check_other_triangle(spec, result.l[result.info == 0])
    flushes = spec.problem.math == "fast"
    flushed = np.isin(kinds, list(FLUSHED_KINDS)) & flushes
    info = lapack_info(a)
    differs = np.flatnonzero((result.info != info) & ~flushed)
    for member in differs[certain(kinds[differs], a[differs])]:
        raise Mismatch(f"matrix {member} ({kinds[member]}) has info {result.info[member]}, of LAPACK {info[member]}")
    good = (result.info == 0) & (info == 0) & ~flushed
    lost = good & np.isnan(np.tril(result.l)).any(axis=(1, 2))
    for member in np.flatnonzero(lost):
        raise Mismatch(f"matrix {member} ({kinds[member]}) has NaN in its factor and info 0")
    beside = kinds == "dominant"
    alone = run_kernel(
        spec, np.where(beside[:, None, None], a, np.eye(spec.problem.n)), chunk, kernel=kernel, **where
    )
    if np.tril(alone.l[beside]).tobytes() != np.tril(result.l[beside]).tobytes():
        raise Mismatch("the factors of good matrices depend on those beside them")
    return _largest_ratio(spec, kinds, a, result.l, good)


def _largest_ratio(spec: KernelSpec, kinds: NDArray[np.str_], a: Array, l: Array, good: NDArray[np.bool_]) -> float:
    """Of denormal matrices no small multiple of the unit roundoff can be expected."""
    measured = np.flatnonzero(good & np.isfinite(a).all(axis=(1, 2)) & (kinds != "denormal"))
    if not len(measured):
        return 0.0
    seen = ratios(a[measured], l[measured])
    worst = int(np.argmax(seen))
    if not seen[worst] <= RATIO_BOUND[spec.problem.math]:
        raise Mismatch(
            f"matrix {measured[worst]} ({kinds[measured[worst]]}) has the residual ratio {seen[worst]:.3g}"
        )
    return float(seen[worst])


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz until the matrices or the seconds are used up; 0, 1 after a failure, or 130 after Ctrl-C."""
    arguments = _parser().parse_args(argv)
    totals, start = Totals(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="batchchol-fuzz-") as folder:
            os.environ["BATCHCHOL_CACHE"] = folder
            failure = _fuzz(arguments, totals, start)
    except KeyboardInterrupt:
        failure = None
        print(f"interrupted; {_summary(totals, start)}", flush=True)
        return 130
    print(failure or _summary(totals, start), flush=True)
    return 1 if failure else 0


def _fuzz(arguments: argparse.Namespace, totals: Totals, start: float) -> str | None:
    """What failed, and how to repeat it; None if nothing did."""
    said = start
    for case in _cases(arguments):
        try:
            run_case(arguments.seed, case, totals)
        except Mismatch as error:
            spec = random_spec(np.random.default_rng((arguments.seed, case)))
            again = f"python -m tests.fuzz.differential --seed {arguments.seed} --case {case}"
            return f"FAILED: {spec.name}, {error}\nto repeat: {again}"
        now = time.monotonic()
        if totals.matrices >= arguments.matrices or now - start >= arguments.seconds:
            break
        if now - said >= PROGRESS_SECONDS:
            said = now
            print(_summary(totals, start), flush=True)
    return None


def _cases(arguments: argparse.Namespace) -> Iterator[int]:
    return count() if arguments.case is None else iter([arguments.case])


def _summary(totals: Totals, start: float) -> str:
    worst = ", ".join(f"{' '.join(key)} {ratio:.2f}" for key, ratio in sorted(totals.largest.items()))
    done = f"{totals.matrices:,} matrices, {totals.cases} kernels, {time.monotonic() - start:.0f} s"
    return f"{done}; largest residual ratios: {worst or 'none'}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.differential", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--matrices", type=int, default=1_000_000, help="how many at most (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which matrices and kernels (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most that long (default: no limit)")
    parser.add_argument("--case", type=int, help="run this case alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
