"""Differential fuzzing of LU factorizations and of solves by general matrices, on the CPU or a GPU, against float64.

    python -m tests.fuzz.general [--backend cuda] [--matrices 1000000] [--seconds 600] [--seed 0] [--processes 1]
                                 [--batches 1]

A case is a random kernel of "getrf", "getrs" or "gesv" on batches in which matrices of all kinds are mixed: normal
ones, graded rows and columns, ties, permutations, singular ones, zeros, NaN, infinities, denormal numbers and large
ones; on the CPU everything lies between guards. Checked are pivots and info, against LAPACK's way of choosing
wherever rounding cannot decide; the componentwise error of factors and solutions; and the bits of good matrices
beside others. How much elements of the good ones grew by most is said at the end, how far each process is after
every 16 kernels. A case depends on the seed, its number and how many batches it has: `--case` repeats one. The exit
status is 1 after a failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from itertools import count
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol import get_backend
from batchchol.artifacts.c_library import supported_targets
from batchchol.batches.batch import Batch
from batchchol.defaults.rules.general import STRAIGHT_LINE
from batchchol.operations.lu import FACTOR_BOUND, SOLVE_BOUND, factor_ratios, growth, solve_ratios
from kernelgen import MAX_N, KernelSpec, SpecError
from kernelgen.gpu import WARP
from kernelgen.schedules.stages.general import MAX_SPLIT

from ..kernel_runs import layout_of, make_spec
from ..lu_runs import matrices, reference, run

Array = NDArray[Any]
OPS = ("getrf", "getrs", "gesv")
KINDS = ("normal", "graded", "columns", "ties", "permutations", "singular", "zero", "nan", "inf", "denormal", "large")
# Of which rounding makes no difference, or which have no numbers to compare.
EXACT = ("permutations", "singular", "zero")
GOOD = ("normal", "graded", "columns", "large")
# What the largest element of a column exceeds the others by, where rounding does not decide which one it is.
CLEAR = 1e-3
ELEMENTS, MOST = 2_000_000, 20_000
# Kernels of a GPU that are built at a time.
TOGETHER = 16


def random_spec(random: np.random.Generator, backend: str = "cpu") -> KernelSpec:
    """Any kernel of a SIMD target or a GPU; small orders more often than large ones."""
    while True:
        choices = {
            "op": str(random.choice(OPS)),
            "layout": str(random.choice(["canonical", "interleaved", "chunked"])),
            "order": str(random.choice(["row", "col"])),
            "dtype": str(random.choice(["float32", "float64"])),
            "math": str(random.choice(["ieee", "fast"])),
        }
        choices |= _of_gpu(random) if backend == "cuda" else _of_cpu(random)
        if backend == "cuda" and choices["layout"] == "chunked" and random.random() < 0.5:
            choices["stride"] = int(random.choice([2, 4, 8, 32]))
        try:
            return make_spec(nb=1, looking="right", **choices)
        except SpecError:
            continue


def _of_cpu(random: np.random.Generator) -> dict[str, Any]:
    n = 1 + int(48 * random.random() ** 2)
    # Straight-line code of larger ones takes a compiler minutes.
    unroll = str(random.choice(["full", "tiles"])) if n <= STRAIGHT_LINE else "tiles"
    return {"n": n, "unroll": unroll, "target": str(random.choice(supported_targets()))}


def _of_gpu(random: np.random.Generator) -> dict[str, Any]:
    """A thread to a matrix, in registers or shared memory, several threads or warps by registers, or by panels."""
    largest, splits, staged = (
        (14, (None,), None),
        (26, (None,), True),
        (64, (4, 8, 16, 32), None),
        (MAX_N, tuple(range(2 * WARP, MAX_SPLIT + 1, WARP)), None),
        (48, (WARP,), True),
        (MAX_N, tuple(range(WARP, 8 * WARP + 1, WARP)), True),
    )[random.integers(6)]
    split = splits[random.integers(len(splits))]
    threads = int(random.choice([32, 64, 128])) if split is None or split <= WARP else None
    n, early = 1 + int(largest * random.random()), bool(random.integers(2)) or None
    choices = {"n": n, "unroll": "full", "target": "cuda", "split": split, "threads": threads, "staged": staged}
    return choices | {"pdl": early}


def of_kind(kind: str, random: np.random.Generator, number: int, n: int, dtype: str) -> Array:
    """`number` matrices of a kind, (number, n, n)."""
    if kind in ("normal", "graded", "ties", "permutations", "singular"):
        return matrices(kind, random, number, n).astype(dtype)
    a, limits = random.standard_normal((number, n, n)), np.finfo(dtype)
    if kind == "columns":
        a *= np.exp2(random.integers(-12, 13, (number, 1, n)))
    elif kind == "large":
        a *= 1e12
    elif kind == "denormal":
        a *= float(limits.tiny) / 16
    elif kind == "zero":
        a[...] = 0
    else:
        value = np.nan if kind == "nan" else np.inf * random.choice([-1, 1])
        a[np.arange(number), random.integers(0, n, number), random.integers(0, n, number)] = value
    return a.astype(dtype)


@dataclass(frozen=True)
class Found:
    """How many matrices were checked, by how many kernels, the largest growth of elements, and what was wrong."""

    matrices: int = 0
    kernels: int = 0
    growth: float = 0.0
    failure: str = ""

    def plus(self, other: Found) -> Found:
        """Both."""
        matrices, kernels = self.matrices + other.matrices, self.kernels + other.kernels
        return Found(matrices, kernels, max(self.growth, other.growth), self.failure or other.failure)


def check_case(seed: int, case: int, backend: str = "cpu", batches: int = 1) -> Found:
    """Run one case. An assertion says what is wrong."""
    random = np.random.default_rng([seed, case])
    spec = random_spec(random, backend)
    return reduce(Found.plus, (check_batch(spec, random, backend) for _ in range(batches)), Found(kernels=1))


def check_batch(spec: KernelSpec, random: np.random.Generator, backend: str) -> Found:
    """Check a kernel on matrices of all kinds."""
    n, dtype, math, op = spec.problem.n, spec.problem.dtype, spec.problem.math, spec.problem.op
    size = int(random.integers(1, min(MOST, max(40, ELEMENTS // n**2)) + 1))
    kinds, nrhs = random.choice(KINDS, size), int(random.integers(1, 6))
    a = np.empty((size, n, n), dtype)
    for kind in np.unique(kinds):
        a[kinds == kind] = of_kind(str(kind), random, int((kinds == kind).sum()), n, dtype)
    b = random.standard_normal((size, n, nrhs)).astype(dtype)
    chunk = spec.schedule.stride or int(random.choice([16, 32, 48, 64])) if spec.layout == "chunked" else None
    pivots, info, clear = reference(a)
    good = np.isin(kinds, GOOD) & (info == 0)
    sure = good | np.isin(kinds, EXACT) | ((kinds == "denormal") & (math == "ieee")) | np.isin(kinds, ("nan", "inf"))
    label = f"{spec.name}, chunk {chunk}, {size} matrices"
    given: tuple[Array, ...] = (a,) if op == "getrf" else (a, b)
    if op == "getrs":
        with np.errstate(all="ignore"):
            given = (*_factored(a), b)
    ran = run_there if backend == "cuda" else run
    found = ran(spec, *given, chunk=chunk)
    alone = ran(spec, *(each[good] for each in given), chunk=chunk) if good.any() else None
    results, others = (each if isinstance(each, tuple) else (each,) for each in (found, alone))
    if alone is not None:
        for result, other in zip(results, others, strict=True):
            assert result[good].tobytes() == other.tobytes(), f"{label}: neighbours change good matrices"
    if op == "getrf":
        lu, rows, status = results
        assert np.array_equal(status[sure], info[sure]), f"{label}: info"
        chosen = (good & (clear > CLEAR)) | np.isin(kinds, EXACT)
        assert np.array_equal(rows[chosen], pivots[chosen]), f"{label}: pivots"
        worst = factor_ratios(a[good], lu[good], rows[good]).max(initial=0)
        assert worst <= FACTOR_BOUND[math], f"{label}: factors off by {worst:.3g} bounds"
        return Found(size, growth=float(growth(a[good], lu[good]).max(initial=0)))
    if op == "gesv":
        assert np.array_equal(results[1][sure], info[sure]), f"{label}: info"
    worst = solve_ratios(a[good], b[good], results[0][good]).max(initial=0)
    assert worst <= SOLVE_BOUND[math], f"{label}: solutions off by {worst:.3g} bounds"
    return Found(size)


def _factored(a: Array) -> tuple[Array, Array]:
    """Factors by the kernel for arrays, and pivots."""
    from batchchol import lu_factor_ex

    return lu_factor_ex(a)[:2]


def run_there(spec: KernelSpec, a: Array, *beside: Array, chunk: int | None = None) -> Any:
    """As `lu_runs.run`, on a GPU."""
    gpu, n = get_backend("cuda"), spec.problem.n
    matrices = gpu.from_dense(a, layout_of(spec, chunk))
    if spec.problem.op == "getrf":
        results: list[Any] = [matrices.like(), gpu.place(np.full((len(a), n), -1, np.int32))]
    else:
        results = [gpu.place(np.full_like(beside[-1], np.nan))]
    info = [] if spec.problem.op == "getrs" else [gpu.info(matrices, spec)]
    gpu.kernel(spec)(matrices, *map(gpu.place, beside), *results, *info, threads=1)
    arrays = [gpu.host(each.to_dense() if isinstance(each, Batch) else each) for each in (*results, *info)]
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


@dataclass(frozen=True)
class Share:
    """The cases of one of `of` processes: number `first` and every `of`-th after it, up to that many matrices.

    Each kernel runs on `batches` batches.
    """

    backend: str
    seed: int
    matrices: int
    seconds: float
    first: int = 0
    of: int = 1
    batches: int = 1

    def cases(self) -> Iterator[int]:
        """Their numbers; their kernels are built some at a time for a GPU."""
        for turn in count():
            if self.backend == "cuda" and turn % TOGETHER == 0:
                numbers = (self.first + self.of * each for each in range(turn, turn + TOGETHER))
                randoms = (np.random.default_rng([self.seed, each]) for each in numbers)
                get_backend("cuda").build([random_spec(random, self.backend) for random in randoms])
            yield self.first + self.of * turn


def check_cases(share: Share, numbers: Iterable[int]) -> Found:
    """Check cases until there are enough matrices, the time is over, or something is wrong."""
    begin, done = time.monotonic(), Found()
    for case in numbers:
        if done.matrices >= share.matrices or time.monotonic() - begin > share.seconds:
            break
        try:
            done = done.plus(check_case(share.seed, case, share.backend, share.batches))
        except AssertionError as error:
            where = "" if share.backend == "cpu" else f" --backend {share.backend}"
            where += "" if share.batches == 1 else f" --batches {share.batches}"
            again = f"python -m tests.fuzz.general{where} --seed {share.seed} --case {case}"
            return done.plus(Found(failure=f"{error}\n{again}"))
        if done.kernels % TOGETHER == 0:
            print(f"{done.matrices:,} matrices by {done.kernels} kernels", file=sys.stderr, flush=True)
    return done


def check_share(share: Share) -> Found:
    """Check the cases of a share."""
    return check_cases(share, share.cases())


def check_shares(whole: Share, processes: int) -> list[Found]:
    """Check the cases in several processes: most of the time is the reference's."""
    if processes == 1:
        return [check_share(whole)]
    matrices = -(-whole.matrices // processes)
    shares = [replace(whole, matrices=matrices, first=first, of=processes) for first in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(check_share, shares))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.general", description=__doc__.split("\n")[0])
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--matrices", type=int, default=1_000_000, help="matrices after which it ends")
    parser.add_argument("--seconds", type=float, default=600, help="seconds after which it ends")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this case alone")
    parser.add_argument("--processes", type=int, default=1, help="processes that check cases, all by one GPU")
    parser.add_argument("--batches", type=int, default=1, help="those of each kernel, which takes long to build")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    whole = Share(options.backend, options.seed, options.matrices, options.seconds, batches=options.batches)
    alone = options.case is not None
    results = [check_cases(whole, [options.case])] if alone else check_shares(whole, options.processes)
    failures = [found.failure for found in results if found.failure]
    done = reduce(Found.plus, results)
    if failures:
        print(*failures, sep="\n", flush=True)
        return 1
    said = f"{done.matrices:,} matrices by {done.kernels} kernels in {time.monotonic() - begin:.0f} s"
    print(f"nothing found: {said}, elements grew by at most {done.growth:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
