"""Differential fuzzing of factorizations above order 128, on the CPU and on a GPU, against LAPACK.

    python -m tests.fuzz.larger [--backend cuda] [--matrices 10000] [--seconds 600]

A case is one call on copies, in random places, of a few matrices of all kinds of `tests.matrix_kinds`, with NaN in
the triangle that is not read. Checked are info, where it must be LAPACK's; residual ratios; zeros in the other
triangle; and that the bits of good matrices depend on no others: those of copies, and beside identities. A case
depends on the seed and its number alone: `--case` repeats one. The exit status is 1 after a failure.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol import cholesky_ex
from batchchol.operations.residual import RATIO_BOUND, ratios

from ..matrix_kinds import KINDS, certain, lapack_info, make
from .differential import PROGRESS_SECONDS, Mismatch

Array = NDArray[Any]
# Of the host; a GPU's kernels take long to compile: on chip, tiles that fit, nearly empty ones, borders, cuBLAS.
LEAST, MOST = 129, 400
GPU_ORDERS = (129, 150, 192, 232, 236, 256, 257, 289, 300, 321, 385, 513, 520, 641, 800)
# Different matrices, and elements of a batch.
DISTINCT, ELEMENTS = 12, {"cpu": 2_000_000, "cuda": 60_000_000}


@dataclass(frozen=True)
class Case:
    """Matrices of an order and type, of which triangle, and where; in place or not."""

    n: int
    batch: int
    dtype: str
    upper: bool
    in_place: bool
    backend: str


def random_case(random: np.random.Generator, backend: str) -> Case:
    """Of one matrix, of a few, or of many."""
    n = LEAST + int((MOST - LEAST) * random.random() ** 2)
    if backend == "cuda":
        n = int(random.choice(GPU_ORDERS))
    batch = max(1, int(ELEMENTS[backend] // n**2 * random.random() ** 3))
    upper, in_place = (bool(random.integers(2)) for _ in range(2))
    return Case(n, batch, str(random.choice(["float32", "float64"])), upper, in_place, backend)


def check(random: np.random.Generator, case: Case) -> float:
    """The largest residual ratio of a case.

    Raises
    ------
    Mismatch
        What is wrong.
    """
    kinds = random.choice(sorted(KINDS), min(case.batch, DISTINCT))
    a = np.concatenate([make(str(kind), random, 1, case.n, case.dtype) for kind in kinds])
    places = random.permutation(np.arange(case.batch) % len(a))
    first = np.array([np.flatnonzero(places == member)[0] for member in range(len(a))])
    factors, found = factored(case, a[places])
    l, info = factors[first], found[first]
    expected = lapack_info(a)
    differs = np.flatnonzero(info != expected)
    for member in differs[certain(kinds[differs], a[differs])]:
        raise Mismatch(f"matrix {member} ({kinds[member]}) has info {info[member]}, of LAPACK {expected[member]}")
    if np.triu(factors[found == 0], 1).any():
        raise Mismatch("the other triangle is not zero")
    beside = kinds[places] == "dominant"
    alone, _ = factored(case, np.where(beside[:, None, None], a[places], np.eye(case.n)).astype(case.dtype))
    if (found != info[places]).any() or any(
        each[beside].tobytes() != l[places[beside]].tobytes() for each in (factors, alone)
    ):
        raise Mismatch("the factors of good matrices depend on those beside them")
    measured = np.flatnonzero((info == 0) & (expected == 0) & np.isfinite(a).all((1, 2)) & (kinds != "denormal"))
    seen = ratios(a[measured], l[measured]) if len(measured) else np.zeros(1)
    worst = int(np.argmax(seen))
    if not seen[worst] <= RATIO_BOUND["ieee"]:
        raise Mismatch(f"matrix {measured[worst]} ({kinds[measured[worst]]}) has the ratio {seen[worst]:.3g}")
    return float(seen[worst])


def factored(case: Case, a: Array) -> tuple[Array, NDArray[np.int32]]:
    """Lower factors, and the info; of what has NaN in its other triangle."""
    read = np.tri(case.n, dtype=bool).T if case.upper else np.tri(case.n, dtype=bool)
    given = np.where(read, a, np.nan).astype(case.dtype)
    l, info = cholesky_ex(given, upper=case.upper, backend=case.backend, out=given if case.in_place else None)
    return np.ascontiguousarray(l.swapaxes(1, 2)) if case.upper else l, info


def main(arguments: Sequence[str] | None = None) -> int:
    """Check cases until there were enough matrices; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.larger", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--matrices", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="repeat this one alone")
    given = parser.parse_args(arguments)
    start, said, matrices, largest = time.monotonic(), 0.0, 0, {"float32": 0.0, "float64": 0.0}
    for number in count() if given.case is None else (given.case,):
        random = np.random.default_rng([given.seed, number])
        case = random_case(random, given.backend)
        try:
            largest[case.dtype] = max(largest[case.dtype], check(random, case))
        except Mismatch as error:
            again = f"--backend {given.backend} --seed {given.seed} --case {number}"
            print(f"{case}: {error}\n  python -m tests.fuzz.larger {again}")
            return 1
        matrices += case.batch
        now = time.monotonic() - start
        if now - said > PROGRESS_SECONDS:
            print(f"{matrices:,} matrices", flush=True)
            said = now
        if matrices >= given.matrices or now > given.seconds:
            break
    worst = ", ".join(f"{dtype} {ratio:.2f}" for dtype, ratio in largest.items())
    print(f"{matrices:,} matrices: nothing wrong; largest residual ratios: {worst}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
