"""Differential fuzzing of the kernels that a GPU's solves, inverses and determinants use, against LAPACK in float64.

    python -m tests.fuzz.solve_kernels [--family warp block] [--matrices 1000000] [--seconds 600] [--processes 8]
    python -m tests.fuzz.solve_kernels --build 8 [--arch sm_90]

A case is one of the kernels that the defaults choose for some order, type, math, layout and size of batch, on
matrices of all kinds of `tests.matrix_kinds` and any number of right-hand sides. Each matrix is there several times,
in random places of a batch that all multiprocessors share; what must not be read holds NaN, and results are poisoned.
Checked are what `tests.fuzz.solves` checks, and that a matrix has the same results, in all bits, in each of its
places. Kernels are compiled before, several at a time; `--build` does no more than that, and needs no GPU. `--case`
repeats a case. The exit status is 1 after a failure, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import count, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol import Batch, get_backend
from batchchol.artifacts.cuda_modules import build_all
from batchchol.defaults.lookup import default_choice
from batchchol.defaults.request import Request
from batchchol.defaults.rules.fused import of_several, two_kernels
from kernelgen import CUDA, KernelSpec, Layout, Problem, SpecError, generate

from .differential import PROGRESS_SECONDS, Mismatch
from .solves import Case, Found, Totals, check_batch, mixed_batch, packed

Array = NDArray[Any]
# What each operation is to the checks of `solves`.
OPS = {
    "posv": "posv",
    "posvdet": "posvdet",
    "potrs": "potrs",
    "logdet": "logdet",
    "poinv": "inv",
    "poinvdet": "inv_logdet",
    "potri": "cho_inverse_logdet",
    "potridet": "cho_inverse_logdet",
    "potrfdet": "cholesky_logdet",
}
ORDERS = (5, 8, 16, 23, 24, 32, 33, 40, 48, 57, 64, 80, 96, 97, 128)
LAYOUTS = (Layout.canonical(), Layout.chunked(32), Layout.chunked(4))
SIZES = (1_024, 131_072)
NRHS, SEVERAL = (1, 1, 2, 3, 5, 8, 9, 17), 8
# Elements of the different matrices of a batch, the most of all of its matrices, and places of each matrix at most.
ELEMENTS, ALL, COPIES = 600_000, 20_000_000, 24
POISON = -7


@cache
def kernels(arch: str, ops: tuple[str, ...], families: tuple[str, ...], orders: tuple[int, ...]) -> tuple[Case, ...]:
    """The kernels that are chosen for something, every second one for upper triangles."""
    found = dict[KernelSpec, Case]()
    asked = product(ops, orders, ("float32", "float64"), LAYOUTS, SIZES, ("ieee", "fast"), (1, SEVERAL))
    for op, n, dtype, layout, size, math, nrhs in asked:
        for spec in _chosen(
            Problem(n, dtype, ("lower", "upper")[len(found) % 2], op, math), layout, size, nrhs, arch
        ):
            upper = spec.problem.uplo == "upper"
            if not families or spec.family in families:
                found.setdefault(spec, Case(OPS[op], n, dtype, upper, math, 1, "cuda", spec, layout))
    return tuple(found.values())


def _chosen(problem: Problem, layout: Layout, size: int, nrhs: int, arch: str) -> Iterator[KernelSpec]:
    """The kernel for a batch, if there is one, and no two."""
    request = Request(problem, CUDA.name, batch=size, arch=arch).on(layout)
    fused = problem.op in ("posv", "posvdet")
    if (nrhs > 1 and problem.op != "posv") or (fused and two_kernels(request, nrhs)):
        return
    with suppress(SpecError):
        yield of_several(request, nrhs) or default_choice(request).spec


def run_there(random: np.random.Generator, case: Case, a: Array, b: Array) -> Found:
    """What a kernel makes of lower triangles, or those of the transposes, each in several places."""
    assert case.spec is not None
    gpu, operation, distinct = get_backend("cuda"), case.spec.problem.operation, len(a)
    copies = int(random.integers(1, max(min(COPIES, ALL // a.size), 1) + 1))
    index = random.permutation(np.tile(np.arange(distinct), copies))
    given = np.where(np.tril(np.ones((case.n, case.n), bool)), a, np.nan).astype(a.dtype)[index]
    matrices = packed(case, gpu, np.ascontiguousarray(given.swapaxes(1, 2)) if case.upper else given)
    poisoned = {"columns": b.shape[1:], "square": a.shape[1:], "scalar": ()}
    rest = dict[str, Any]()
    for argument in operation.arguments[1:]:
        if argument.shape == "info":
            rest["info"] = gpu.place(np.full(len(index), POISON, np.int32))
        elif not argument.written:
            rest[argument.name] = gpu.place(b[index])
        elif argument.in_batch:
            rest[argument.name] = matrices.like()
        else:
            rest[argument.name] = gpu.place(np.full((len(index), *poisoned[argument.shape]), np.nan, a.dtype))
    gpu.kernel(case.spec)(matrices, *rest.values(), threads=1)
    places = np.argsort(index, kind="stable").reshape(distinct, copies)
    results: dict[str, Array | None] = {
        argument.name: _of_each(argument.name, _on_host(case, rest[argument.name]), places)
        for argument in operation.arguments
        if argument.written
    }
    # A factor's info is another one than its matrix's.
    info, logarithms = results.pop("info", None), results.pop("logdet", None)
    result, *_ = (*results.values(), logarithms)
    assert result is not None
    return Found(result, info if operation.factors else None, logarithms if results else None)


def _on_host(case: Case, result: Any) -> Array:
    """A result; of factors the lower triangles, of the transposes those of upper ones."""
    host = get_backend("cuda").host
    if not isinstance(result, Batch):
        return np.asarray(host(result))
    dense = host(result.to_dense())
    return np.tril(dense.swapaxes(1, 2) if case.upper else dense)


def _of_each(name: str, host: Array, places: NDArray[np.int64]) -> Array:
    """The result of each matrix in its first place, if those in its others are the same."""
    first = host[places[:, 0]]
    for other in places.T[1:]:
        if not np.array_equal(first, host[other], equal_nan=host.dtype.kind == "f"):
            raise Mismatch(f"{name} of a matrix depends on its place")
    return first


def run_case(seed: int, number: int, cases: Sequence[Case], totals: Totals) -> None:
    """Check one kernel on a batch; a Mismatch says what is wrong."""
    random = np.random.default_rng((seed, number))
    chosen = cases[number % len(cases)]
    case = Case(**vars(chosen) | {"nrhs": int(random.choice(NRHS))})
    kinds, a, b = mixed_batch(random, case, ELEMENTS)
    try:
        totals.add(case, len(a), check_batch(random, case, kinds, a, b, run_there))
    except (AssertionError, Mismatch) as error:
        raise Mismatch(f"{case}: {len(a)} matrices: {error}") from error
    totals.cases += 1


def fuzz(given: argparse.Namespace, cases: Sequence[Case], totals: Totals, start: float) -> Iterator[str]:
    """What failed, and how to repeat it; of each kernel the first failure."""
    said, failed = start, set[int]()
    numbers: Iterator[int] = count(given.first, given.every) if given.case is None else iter([given.case])
    for number in numbers:
        try:
            if number % len(cases) not in failed:
                run_case(given.seed, number, cases, totals)
        except Mismatch as error:
            failed.add(number % len(cases))
            yield f"FAILED: {error}\nto repeat: {_again(given)} --seed {given.seed} --case {number}"
        now = time.monotonic()
        if totals.matrices * given.every >= given.matrices or now - start >= given.seconds:
            break
        if now - said >= PROGRESS_SECONDS:
            said = now
            print(totals.summary(start), flush=True)


def _again(given: argparse.Namespace) -> str:
    """The command with the same kernels."""
    words = ["python -m tests.fuzz.solve_kernels"]
    for name in ("op", "family", "orders"):
        words += [f"--{name}", *map(str, getattr(given, name))] if getattr(given, name) else []
    return f"{' '.join(words)} --kernels {given.kernels}"


def in_processes(given: argparse.Namespace, argv: Sequence[str]) -> int:
    """Have several processes take turns with the cases: most of the time is the reference's."""
    command = [sys.executable, "-m", "tests.fuzz.solve_kernels", *argv, "--every", str(given.processes)]
    running = [
        subprocess.Popen([*command, "--processes", "1", "--first", str(first)]) for first in range(given.processes)
    ]
    return max(each.wait() for each in running)


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz until the matrices or the seconds are used up; 0, 1 after a failure, or 130 after Ctrl-C."""
    given = _parser().parse_args(argv)
    arch = given.arch or get_backend("cuda").architecture
    cases = kernels(arch, tuple(given.op or OPS), tuple(given.family), tuple(given.orders or ORDERS))
    cases = cases[:: max(len(cases) // given.kernels, 1)]
    if given.build is not None or given.every == 1:
        wanted = cases if given.case is None else [cases[given.case % len(cases)]]
        built = build_all([generate(case.spec) for case in wanted if case.spec], arch, jobs=given.build, per_module=2)
        done = sum(outcome.status == "built" for outcome in built)
        print(f"{done} of {len(wanted)} kernels are there", flush=True)
    if given.build is not None:
        return 0
    if given.processes > 1:
        return in_processes(given, [*(sys.argv[1:] if argv is None else argv), "--arch", arch])
    totals, start, status = Totals(), time.monotonic(), 0
    try:
        for failure in fuzz(given, cases, totals, start):
            print(failure, flush=True)
            status = 1
    except KeyboardInterrupt:
        status = 130
    print(("interrupted; " if status == 130 else "") + totals.summary(start), flush=True)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.solve_kernels", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--op", nargs="+", choices=OPS, help="which operations (default: all)")
    parser.add_argument("--family", nargs="+", default=[], help="which families of kernels (default: all)")
    parser.add_argument("--orders", nargs="+", type=int, help=f"(default: {' '.join(map(str, ORDERS))})")
    parser.add_argument("--kernels", type=int, default=256, help="about how many kernels (default: %(default)s)")
    parser.add_argument(
        "--matrices", type=int, default=1_000_000, help="how many different ones (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="which matrices (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600, help="at most that long (default: %(default)s)")
    parser.add_argument("--case", type=int, help="run this case alone")
    parser.add_argument("--processes", type=int, default=1, help="which take turns with the cases")
    parser.add_argument("--build", type=int, metavar="JOBS", help="compile the kernels, and end")
    parser.add_argument("--arch", help="the GPU's architecture, such as sm_90 (default: that of the GPU)")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--every", type=int, default=1, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
