"""Differential fuzzing of solves, inverses and determinants, on the CPU and on a GPU, against LAPACK in float64.

    python -m tests.fuzz.solves [--backend cuda] [--op solve inv] [--matrices 1000000] [--seconds 600] [--processes 2]

A case is one operation on matrices of one order, dtype, triangle, layout and math: a few batches in which matrices of
all kinds of `tests.matrix_kinds` are mixed. What must not be read holds NaN. "posv", "potrs" and "logdet" are random
kernels of the CPU, in memory between guards; the others are the library's calls, with the kernels that they choose.
Checked are: info, against LAPACK's wherever rounding cannot decide; the componentwise error of each result; the bits
of good matrices beside others; and that nothing else was written. A case depends on the seed and its number alone:
`--case` repeats one. The exit status is 1 after a failure, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol import (
    Batch,
    Layout,
    cho_solve,
    get_backend,
    inv_ex,
    slogdet_ex,
    solve_ex,
)
from batchchol.batches.layouts import padded
from kernelgen import MAX_N, KernelSpec

from ..kernel_runs import kernel_of, run_logdet, run_posv
from ..matrix_kinds import FLUSHED_KINDS, KINDS, certain, is_decided, lapack_info, make
from .differential import BATCHES, PROGRESS_SECONDS, Mismatch, random_spec
from .solve_results import BY_FACTORS, by_factors, factored, packed_inverses, worst_error

Array = NDArray[Any]
KERNELS = ("posv", "potrs", "logdet")
CALLS = (
    "solve",
    "solve_logdet",
    "cho_solve",
    "inv",
    "slogdet",
    "cholesky_logdet",
    "inv_logdet",
    "cho_inverse_logdet",
    "inv_packed",
)
# A CPU's are whole groups of lanes, of narrow ones too.
CHUNKS = {"cpu": (4, 8, 16, 32, 48, 512), "cuda": (2, 3, 16, 32, 48, 64, 512)}
# Elements of a batch, and the most and fewest matrices.
ELEMENTS, MOST, FEWEST = 300_000, 4_000, 40
# The bounds of these are to first order: no pivot may be as small as what rounding changes it by.
FIRST_ORDER = (
    "posvdet",
    "inv_packed",
    "inv",
    "logdet",
    "slogdet",
    "solve_logdet",
    "cholesky_logdet",
    "inv_logdet",
    "cho_inverse_logdet",
)
# Whose elements are so large or small that right-hand sides have to be as well.
SCALED = ("tiny", "huge")


@dataclass(frozen=True)
class Case:
    """An operation on matrices of one problem, by the kernel of a spec or a call, on a batch if there is a layout."""

    op: str
    n: int
    dtype: str
    upper: bool
    math: str
    nrhs: int
    backend: str = "cpu"
    spec: KernelSpec | None = None
    layout: Layout | None = None

    @property
    def flushes(self) -> bool:
        """Whether it may take denormals for zeros."""
        return self.math == "fast"

    def __str__(self) -> str:
        where = self.spec.name if self.spec else f"{self.backend}, {self.layout or 'arrays'}"
        triangle = "upper" if self.upper else "lower"
        return f"{self.op}, n = {self.n}, {self.dtype}, {triangle}, {self.math}, nrhs = {self.nrhs}, {where}"


@dataclass(frozen=True)
class Found:
    """What was made of a batch: (batch, ...) results, and the info of each where matrices are factored.

    And the logarithms of determinants, as by-products.
    """

    result: Array
    info: NDArray[np.int32] | None
    logabsdet: Array | None = None


Run = Callable[[np.random.Generator, Case, Array, Array], Found]


def random_case(random: np.random.Generator, ops: Sequence[str], backend: str) -> Case:
    """Any operation of these; small orders more often than large ones."""
    op, nrhs = str(random.choice(ops)), int(random.integers(1, 12))
    if op in KERNELS:
        spec = random_spec(random, op)
        problem = spec.problem
        return Case(op, problem.n, problem.dtype, problem.uplo == "upper", problem.math, nrhs, spec=spec)
    n, order = 1 + int(MAX_N * random.random() ** 3), str(random.choice(["row", "col"]))
    chunk = int(random.choice(CHUNKS[backend]))
    layouts = (None, Layout.canonical(order), Layout.interleaved(order), Layout.chunked(chunk, order))
    return Case(
        op, n, str(random.choice(["float32", "float64"])), bool(random.integers(2)),
        str(random.choice(["ieee", "fast"])), nrhs, backend, layout=layouts[random.integers(len(layouts))],
    )  # fmt: skip


# ---- Data ----


def mixed_batch(
    random: np.random.Generator, case: Case, elements: int | None = None
) -> tuple[NDArray[np.str_], Array, Array]:
    """The kinds of matrices in random places, the matrices or their lower factors, and right-hand sides for them."""
    size = int(random.integers(1, min(MOST, max(FEWEST, (elements or ELEMENTS) // case.n**2)) + 1))
    kinds = random.choice(sorted(KINDS), size)
    a = np.empty((size, case.n, case.n), case.dtype)
    for kind in np.unique(kinds):
        a[kinds == kind] = make(str(kind), random, int((kinds == kind).sum()), case.n, case.dtype)
    b = random.standard_normal((size, case.n, case.nrhs))
    scaled = np.isin(kinds, SCALED)
    b[scaled] *= np.abs(a[scaled]).max((1, 2), keepdims=True) / 16
    return kinds, a, b.astype(case.dtype)


def lower_factors(a: Array) -> Array:
    """Factors of matrices by float64, rounded; of those that have none their own lower triangles."""
    exact, ok = a.astype(np.float64), factorable(a)
    l = np.tril(exact)
    l[ok] = np.linalg.cholesky(exact[ok])
    return l.astype(a.dtype)


@np.errstate(all="ignore")
def factorable(a: Array) -> NDArray[np.bool_]:
    """Which matrices are finite and positive definite in float64."""
    ok = np.isfinite(a).all(axis=(1, 2))
    for member in np.flatnonzero(ok):
        try:
            np.linalg.cholesky(a[member].astype(np.float64))
        except np.linalg.LinAlgError:
            ok[member] = False
    return ok


# ---- The calls ----


def run(random: np.random.Generator, case: Case, a: Array, b: Array) -> Found:
    """Have an operation work on lower triangles, or those of the transposes, and lose nothing but its results."""
    how = {"threads": int(random.integers(1, 4))}
    if case.spec is None:
        return call(case, a, b)
    chunk = case.spec.lanes * int(random.integers(1, 4)) if case.spec.layout == "chunked" else None
    if case.op == "logdet":
        return Found(*run_logdet(case.spec, a, chunk, **how))
    offset, in_place = a.itemsize * int(random.integers(0, 3)), bool(random.integers(2))
    solved = run_posv(case.spec, a, b, chunk, solver=kernel_of(case.spec), offset=offset, in_place=in_place, **how)
    return Found(solved.x, solved.info if case.op == "posv" else None)


def call(case: Case, a: Array, b: Array) -> Found:
    """The library's call on arrays or a batch, where the backend has them."""
    backend = get_backend(case.backend)
    triangle = np.tril(np.ones((case.n, case.n), bool))
    given = np.where(triangle, a, np.nan).astype(a.dtype)
    given = np.ascontiguousarray(given.swapaxes(1, 2)) if case.upper else given
    kept, right = given.copy(), b.copy()
    place: Callable[[Array], Any] = backend.place if case.backend == "cuda" else lambda array: array
    matrices = place(given) if case.layout is None else packed(case, backend, given)
    columns = place(right)
    how: dict[str, Any] = {"upper": case.upper, "math": case.math}
    if case.op == "cho_solve":
        found = Found(backend.host(cho_solve(matrices, columns, **how)), None)
    else:
        of: Mapping[str, Callable[[], Any]] = {
            "solve": lambda: solve_ex(matrices, columns, **how),
            "solve_logdet": lambda: solve_ex(matrices, columns, logdet=True, **how)[:0:-1],
            "inv": lambda: inv_ex(matrices, **how),
            "slogdet": lambda: slogdet_ex(matrices, **how)[1:],
            "cholesky_logdet": lambda: factored(matrices, **how),
            "inv_logdet": lambda: inv_ex(matrices, logdet=True, **how),
            "inv_packed": lambda: packed_inverses(case, matrices, **how),
            "cho_inverse_logdet": lambda: by_factors(matrices, **how),
        }
        found = Found(*(None if each is None else backend.host(each) for each in of[case.op]()))
    if case.layout is None and backend.host(matrices).tobytes() != kept.tobytes():
        raise Mismatch("the matrices were changed")
    if backend.host(columns).tobytes() != b.tobytes():
        raise Mismatch("the right-hand sides were changed")
    return found


def packed(case: Case, backend: Any, given: Array) -> Any:
    """A batch, with NaN in its padding as well."""
    assert case.layout is not None
    room = np.full((padded(len(given), case.layout), case.n, case.n), np.nan, given.dtype)
    room[: len(given)] = given
    if case.backend == "cpu" and len(room) != len(given):
        whole = Batch.from_dense(room, case.layout)
        return Batch(whole.data, case.n, len(given), case.layout)
    return backend.from_dense(given, case.layout)


# ---- The checks ----


def check_batch(
    random: np.random.Generator, case: Case, kinds: NDArray[np.str_], a: Array, b: Array, by: Run | None = None
) -> float:
    """The largest error of a batch of which all is as it should be, run by `run` unless another way is given."""
    given, run_by = lower_factors(a) if case.op in BY_FACTORS else a, by or run
    state = random.bit_generator.state
    found = run_by(random, case, given, b)
    flushed = np.isin(kinds, list(FLUSHED_KINDS)) & case.flushes
    # Inverses of huge matrices have elements that are hardly normal numbers.
    inverts = case.op.startswith(("inv", "cho_inv"))
    good = factorable(a) & ~flushed & (kinds != "denormal") & ((kinds != "huge") | (not inverts))
    if found.info is not None:
        check_info(case, kinds, a, found.info, flushed)
        good &= found.info == 0
    if case.op in FIRST_ORDER:
        good[good] = is_decided(a[good])
    largest = worst_error(case, kinds, given, b, found.result, good)
    if found.logabsdet is not None:
        logarithms = replace(case, op="logdet_by_factors" if case.op in BY_FACTORS else "slogdet")
        largest = max(largest, worst_error(logarithms, kinds, given, b, found.logabsdet, good))
    beside = kinds == "dominant"
    random.bit_generator.state = state
    alone = run_by(random, case, np.where(beside[:, None, None], given, np.eye(case.n, dtype=a.dtype)), b)
    if alone.result[beside].tobytes() != found.result[beside].tobytes():
        raise Mismatch("the results of good matrices depend on those beside them")
    return largest


def check_info(
    case: Case, kinds: NDArray[np.str_], a: Array, found: NDArray[np.int32], flushed: NDArray[np.bool_]
) -> None:
    """Fail unless each info is LAPACK's, wherever rounding cannot decide."""
    info = lapack_info(a)
    differs = np.flatnonzero((found != info) & ~flushed)
    for member in differs[certain(kinds[differs], a[differs])]:
        raise Mismatch(f"matrix {member} ({kinds[member]}) has info {found[member]}, of LAPACK {info[member]}")


# ---- The command ----


@dataclass
class Totals:
    """What was done so far: matrices, and the largest error over its bound for each operation."""

    cases: int = 0
    matrices: int = 0
    largest: dict[str, float] | None = None

    def add(self, case: Case, matrices: int, largest: float) -> None:
        """Count a batch."""
        self.largest = self.largest or {}
        self.matrices += matrices
        self.largest[case.op] = max(self.largest.get(case.op, 0.0), largest)

    def summary(self, start: float) -> str:
        """A line of it."""
        worst = ", ".join(f"{op} {ratio:.2f}" for op, ratio in sorted((self.largest or {}).items()))
        done = f"{self.matrices:,} matrices, {self.cases} cases, {time.monotonic() - start:.0f} s"
        return f"{done}; largest errors over their bounds: {worst or 'none'}"


def run_case(seed: int, number: int, ops: Sequence[str], backend: str, totals: Totals) -> None:
    """Check one case on its batches.

    Raises
    ------
    Mismatch
        If something is wrong; says what, and of which case and matrix.
    """
    random = np.random.default_rng((seed, number))
    case = random_case(random, ops, backend)
    for batch in range(BATCHES):
        kinds, a, b = mixed_batch(random, case)
        try:
            totals.add(case, len(a), check_batch(random, case, kinds, a, b))
        except (AssertionError, Mismatch) as error:
            raise Mismatch(f"{case}: batch {batch} of {len(a)}: {error}") from error
    totals.cases += 1


def fuzz(given: argparse.Namespace, totals: Totals, start: float) -> str | None:
    """What failed, and how to repeat it; None if nothing did."""
    said = start
    numbers: Iterator[int] = count(given.first, given.every) if given.case is None else iter([given.case])
    for number in numbers:
        try:
            run_case(given.seed, number, given.op, given.backend, totals)
        except Mismatch as error:
            ops = f"--backend {given.backend} --op {' '.join(given.op)}"
            again = f"python -m tests.fuzz.solves {ops} --seed {given.seed} --case {number}"
            return f"FAILED: {error}\nto repeat: {again}"
        now = time.monotonic()
        if totals.matrices * given.every >= given.matrices or now - start >= given.seconds:
            break
        if now - said >= PROGRESS_SECONDS:
            said = now
            print(totals.summary(start), flush=True)
    return None


def in_processes(given: argparse.Namespace, argv: Sequence[str]) -> int:
    """Have several processes take turns with the cases; the largest exit status."""
    command = [sys.executable, "-m", "tests.fuzz.solves", *argv, "--every", str(given.processes)]
    running = [
        subprocess.Popen([*command, "--processes", "1", "--first", str(first)]) for first in range(given.processes)
    ]
    return max(each.wait() for each in running)


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz until the matrices or the seconds are used up; 0, 1 after a failure, or 130 after Ctrl-C."""
    given = _parser().parse_args(argv)
    given.op = given.op or [*(KERNELS if given.backend == "cpu" else ()), *CALLS]
    totals, start = Totals(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="batchchol-fuzz-") as folder:
            if given.every == 1:
                os.environ["BATCHCHOL_CACHE"] = folder
            if given.processes > 1:
                return in_processes(given, sys.argv[1:] if argv is None else argv)
            failure = fuzz(given, totals, start)
    except KeyboardInterrupt:
        print(f"interrupted; {totals.summary(start)}", flush=True)
        return 130
    print(failure or totals.summary(start), flush=True)
    return 1 if failure else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.solves", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="where (default: %(default)s)")
    parser.add_argument("--op", nargs="+", choices=(*KERNELS, *CALLS), help="which operations (default: all)")
    parser.add_argument("--matrices", type=int, default=1_000_000, help="how many at most (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which matrices and cases (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most that long (default: no limit)")
    parser.add_argument("--case", type=int, help="run this case alone")
    parser.add_argument("--processes", type=int, default=1, help="which take turns with the cases")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--every", type=int, default=1, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
