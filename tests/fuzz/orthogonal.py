"""Differential fuzzing of QR factorizations and least squares, on the CPU and on a GPU, against LAPACK in float64.

    python -m tests.fuzz.orthogonal [--backend cuda] [--matrices 1000000] [--seconds 600]

A case is one call on matrices of one size, dtype and math, all kinds of `tests.qr_runs` mixed with such that are not
finite, zero, tiny or huge. Checked are: the backward error by columns and the orthogonality of reflectors; R against
that of LAPACK in float64, as far as the condition of the matrix allows, with its signs; the backward error of least
squares and their info; and the bits of good matrices beside others. A case depends on the seed and its number alone:
`--case` repeats one. The exit status is 1 after a failure.
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

from batchchol import lstsq_ex, qr
from batchchol.operations.qr import BOUND, OWN, factor_ratios, orthogonal, orthogonality_ratios, solve_ratios

from ..qr_runs import KINDS, matrices
from .differential import PROGRESS_SECONDS, Mismatch

Array = NDArray[Any]
SPECIAL = ("nan", "infinite", "zero", "tiny", "huge")
# Elements of a batch, and the most matrices.
ELEMENTS, MOST = 300_000, 4_000
LARGEST = 40
# A GPU's kernels take long to compile: of some sizes.
GPU_SHAPES = (
    (3, 3),
    (1, 4),
    (8, 8),
    (14, 14),
    (9, 5),
    (5, 9),
    (16, 16),
    (17, 17),
    (24, 24),
    (24, 16),
    (32, 32),
    (48, 48),
    (40, 33),
    (33, 40),
    (100, 7),
    (70, 70),
    (32, 8),
    (24, 12),
    (64, 8),
    (20, 20),
    (96, 96),
    (128, 128),
)
# Least squares have full rank, R is compared, of these.
CLEAR = ("normal", "graded columns")


@dataclass(frozen=True)
class Case:
    """A size, what is called how, and where."""

    m: int
    n: int
    dtype: str
    math: str
    nrhs: int
    backend: str


def random_case(random: np.random.Generator, backend: str) -> Case:
    """A size that the backend has kernels for; small ones more often than large ones."""
    m, n = (1 + int(LARGEST * random.random() ** 2.5) for _ in range(2))
    dtype = str(random.choice(["float32", "float64"]))
    if backend == "cuda":
        m, n = GPU_SHAPES[int(random.integers(len(GPU_SHAPES)))]
    return Case(m, n, dtype, str(random.choice(["ieee", "fast"])), int(random.integers(1, 5)), backend)


def mixed(random: np.random.Generator, case: Case) -> tuple[NDArray[np.str_], Array]:
    """The kinds of matrices in random places, and the matrices; numbers out of range only where they are promised."""
    size = int(random.integers(1, min(MOST, max(40, ELEMENTS // (case.m * case.n))) + 1))
    names = [*KINDS, *(SPECIAL if case.math == "ieee" else SPECIAL[:3])]
    kinds, a = random.choice(names, size), np.empty((size, case.m, case.n), case.dtype)
    limits = np.finfo(a.dtype)
    for kind in np.unique(kinds):
        where = np.flatnonzero(kinds == kind)
        made = matrices(str(kind) if kind in KINDS else "normal", random, len(where), case.m, case.n)
        if kind in ("nan", "infinite"):
            places = tuple(random.integers(0, side, len(where)) for side in (case.m, case.n))
            made[(np.arange(len(where)), *places)] = np.nan if kind == "nan" else np.inf
        if kind == "zero":
            made[:] = 0
        if kind in ("tiny", "huge"):
            made *= float(limits.smallest_subnormal) * 2.0**8 if kind == "tiny" else float(limits.max) * 2.0**-12
        a[where] = made
    return kinds, a


def check(random: np.random.Generator, case: Case) -> int:
    """Run a case, and say how many matrices it had.

    Raises
    ------
    Mismatch
        What is wrong.
    """
    kinds, a = mixed(random, case)
    how: dict[str, Any] = {"backend": case.backend, "math": case.math}
    factors, tau = qr(a, "raw", **how)
    finite = ~np.isin(kinds, ("nan", "infinite"))
    _require(finite <= np.isfinite(factors).all((1, 2)), "factors are not finite", kinds)
    _require(~finite <= ~np.isfinite(factors).all((1, 2)), "something that is not finite was lost", kinds)
    usual = finite & ~np.isin(kinds, ("tiny",))
    _require(factor_ratios(a[usual], factors[usual], tau[usual]) <= BOUND[case.math], "A - Q R", kinds[usual])
    q = orthogonal(factors[finite], tau[finite])
    _require(orthogonality_ratios(q, a.dtype) <= BOUND[case.math], "I - Q^T Q", kinds[finite])
    _check_tiny(case, a[kinds == "tiny"], factors[kinds == "tiny"], tau[kinds == "tiny"])
    _check_lapack(case, a, factors, kinds)
    alone = np.flatnonzero(finite)[: max(1, int(finite.sum()) // 2)]
    if len(alone):
        again = qr(a[alone], "raw", **how)
        same = [one[alone].tobytes() == other.tobytes() for one, other in zip((factors, tau), again, strict=True)]
        _require(np.array(same), "bits depend on the neighbours", np.array(["factors", "tau"]))
    if case.m >= case.n:
        _check_solutions(random, case, kinds, a, how)
    return len(a)


def _check_tiny(case: Case, a: Array, factors: Array, tau: Array) -> None:
    """Of denormals |A - Q R| may be a rounding of each product besides."""
    if not len(a):
        return
    wide = a.astype(np.longdouble)
    error = np.abs(wide - orthogonal(factors, tau).astype(np.longdouble) @ np.triu(factors).astype(np.longdouble))
    sides, limits = case.m + case.n + OWN, np.finfo(a.dtype)
    norms = np.sqrt((wide**2).sum(-2, keepdims=True))
    allowed = BOUND["ieee"] * sides * float(limits.eps) / 2 * norms + sides**2 * np.longdouble(
        limits.smallest_subnormal
    )
    _require((error <= allowed).all((1, 2)), "A - Q R of denormals", np.full(len(a), "tiny"))


def _check_lapack(case: Case, a: Array, factors: Array, kinds: NDArray[np.str_]) -> None:
    """R is that of LAPACK in float64, signs included, but for what the condition makes of the backward error."""
    where = np.flatnonzero(np.isin(kinds, CLEAR))
    if not len(where) or case.m < case.n:
        return
    wide = a[where].astype(np.float64)
    scaled = wide / np.linalg.norm(wide, axis=-2, keepdims=True)
    expected = np.linalg.qr(wide, mode="r")
    norms = np.linalg.norm(wide, axis=-2, keepdims=True)
    error = np.abs(np.triu(factors[where, : case.n]) - expected) / norms
    unit = max(float(np.finfo(a.dtype).eps), 2.0**-52)
    allowed = 4 * BOUND[case.math] * (case.m + case.n + OWN) * unit * np.linalg.cond(scaled)
    _require((error.max((1, 2)) <= allowed) | (allowed > 0.01), "R is not LAPACK's", kinds[where])


def _check_solutions(
    random: np.random.Generator, case: Case, kinds: NDArray[np.str_], a: Array, how: dict[str, Any]
) -> None:
    b = random.standard_normal((len(a), case.m, case.nrhs)).astype(case.dtype)
    x, info = lstsq_ex(a, b, **how)
    clear = np.isin(kinds, CLEAR)
    _require(info[clear] == 0, "info of full rank", kinds[clear])
    _require(info[kinds == "zero"] == 1, "info of zeros", kinds[kinds == "zero"])
    zeros = kinds == "zero column"
    at = np.arange(zeros.sum()) % case.n + 1
    _require(info[zeros] == at, "info of a zero column", kinds[zeros])
    _require(solve_ratios(a[clear], b[clear], x[clear]) <= BOUND[case.math], "solutions", kinds[clear])


def _require(right: NDArray[np.bool_], what: str, kinds: NDArray[np.str_]) -> None:
    if not np.all(right):
        wrong = np.flatnonzero(~np.asarray(right))
        raise Mismatch(f"{what}: {len(wrong)} of {len(kinds)} matrices, the first {kinds[wrong[0]]!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check cases until there were enough matrices; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.orthogonal", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--matrices", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="repeat this one alone")
    given = parser.parse_args(arguments)
    start, said, matrices_seen, cases = time.monotonic(), 0.0, 0, 0
    for number in count() if given.case is None else (given.case,):
        random = np.random.default_rng([given.seed, number])
        case = random_case(random, given.backend)
        try:
            matrices_seen += check(random, case)
        except Mismatch as error:
            again = f"--backend {given.backend} --seed {given.seed} --case {number}"
            print(f"{case}: {error}\n  python -m tests.fuzz.orthogonal {again}")
            return 1
        cases += 1
        now = time.monotonic() - start
        if now - said > PROGRESS_SECONDS:
            print(f"{matrices_seen:,} matrices in {cases} cases", flush=True)
            said = now
        if matrices_seen >= given.matrices or now > given.seconds:
            break
    print(f"{matrices_seen:,} matrices in {cases} cases: nothing wrong")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
