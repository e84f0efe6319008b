"""The GPU's kernels under compute-sanitizer: odd orders, ragged batches, every layout, and the library around them.

On a machine with a GPU, from the root of the repository:

    python -m tests.sanitizers [--tool racecheck] [--op posv] [--family block] [--part 1/3] [--seconds 60]

prints a line a tool. The exit status is 0 if all is clean, 1 if a tool found something or a result was wrong, 2 if
something is missing. compute-sanitizer comes with the CUDA toolkit, and as the wheel nvidia-cuda-sanitizer-api.
racecheck takes long: a family at a time, in parts, or as much of it as fits the seconds, it can be done in pieces.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol import factor, get_backend
from batchchol.datasets import generation
from batchchol.errors import BackendUnavailable
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import FAMILIES, KernelSpec, Layout
from kernelgen.operations import OPERATIONS

from .arrivals import every_lane_arrives
from .cases import LAYOUTS, ORDERS, Case, cases
from .larger import run_larger
from .reflectors import check_reflection, reflections
from .single import run_single
from .solves import (
    by_factors,
    check_determined_factors,
    check_inversion,
    check_repaired_factors,
    check_solve,
    inversions,
    solves,
)

CLEAN, FOUND, MISSING = 0, 1, 2
# What a tool's process returns if the tool found something, unlike anything that Python itself returns.
_ERRORS_FOUND = 9
_QUOTED_LINES = 25
# PyCUDA and NumPy ask for what this driver need not have: only what the library calls itself counts.
_OPTIONS = ("--target-processes", "application-only", "--report-api-errors", "explicit")
TOOLS: Mapping[str, tuple[str, ...]] = {
    # The padding keeps an access beside an array from being one inside the next.
    "memcheck": ("--padding", "256"),
    "racecheck": (),
    "initcheck": (),
    "synccheck": (),
}

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = (sys.executable, "-m", "tests.sanitizers", "--work")

RECIPES = ("diagonally_dominant", "wishart", "graded", "banded", "failing")


def matrices(batch: int, n: int, dtype: str) -> NDArray[Any]:
    normal = np.random.default_rng((batch, n)).standard_normal((batch, n, 2 * n))
    product: NDArray[Any] = (normal @ normal.swapaxes(1, 2) / (2 * n)).astype(dtype)
    return product


@dataclass(frozen=True)
class Work:
    """Which kernels to run: of some families and operations, of these every `parts`-th from number `part`, begun in
    time.
    """

    families: tuple[str, ...] = ()
    part: int = 1
    parts: int = 1
    seconds: float = inf
    operations: tuple[str, ...] = ()

    @classmethod
    def asked_for(cls, options: argparse.Namespace) -> Work:
        part, parts = options.part
        return cls(tuple(options.family or ()), part, parts, options.seconds, tuple(options.op or ()))

    @property
    def everything(self) -> bool:
        """Whether no kernel is left out."""
        return not self.operations and not self.families and self.parts == 1

    def cases(self) -> list[Case]:
        wanted = [
            case
            for case in chain(cases(), solves(), reflections(), inversions())
            if (not self.families or case.spec.family in self.families)
            and (not self.operations or case.spec.problem.op in self.operations)
        ]
        return wanted[self.part - 1 :: self.parts]

    def arguments(self) -> tuple[str, ...]:
        """What `--work` is to be told."""
        families = (word for family in self.families for word in ("--family", family))
        operations = (word for op in self.operations for word in ("--op", op))
        return (*operations, *families, "--part", f"{self.part}/{self.parts}", "--seconds", str(self.seconds))


def work(wanted: Work) -> None:
    """Run the kernels once and check what they made; if all are wanted, also what the library needs besides."""
    allocate_exactly()
    fill_one_multiprocessor()
    backend, chosen, start = get_backend("cuda"), wanted.cases(), time.perf_counter()
    for built in backend.build([spec for case in chosen for spec in specs_of(case)]):
        assert built.status == "built", f"{built.entry}: {built.status}: {built.message}"
    done = 0
    for case in chosen:
        if time.perf_counter() - start < wanted.seconds:
            check_case(backend, case)
            print(f"{time.perf_counter() - start:7.1f} s  {case.spec.name}, batch {case.batch}", flush=True)
            done += 1
    if wanted.everything:
        check_library(backend)
    print(f"{done} of {len(chosen)} kernels{', data sets' if wanted.everything else ''}")


def specs_of(case: Case) -> tuple[KernelSpec, ...]:
    """The kernels that a case runs: a solve by a general matrix is followed by what it is made of."""
    return (case.spec, *(by_factors(case.spec) if case.spec.problem.op == "gesv" else ()))


def check_library(backend: Any) -> None:
    """Larger matrices, single ones, data sets made on the device, and what measures it."""
    run_larger()
    run_single()
    for turn, recipe in enumerate(RECIPES * 3):
        check_fill(backend, recipe, ORDERS[(3 + 2 * turn) % len(ORDERS)], LAYOUTS[turn % len(LAYOUTS)])
    run_ceilings()


def fill_one_multiprocessor() -> None:
    """As many blocks as one has room for: those that go on to further matrices then do so in small batches too."""
    from batchchol.backends.cuda.device import device

    device().multiprocessors = 1


def allocate_exactly() -> None:
    """Every array in memory of its own, of its own size: else the tools see neither its end nor its beginning."""
    from batchchol.backends.cuda import pool

    pool.KEPT_SHARE, pool.GRANULE = 0.0, 1


def check_case(backend: Any, case: Case) -> None:
    """Have a kernel do its operation on a batch, and check the result."""
    problem = case.spec.problem
    if problem.op == "potrf":
        check_factor(backend, case)
    elif problem.op == "potrfdet":
        check_determined_factors(backend, case, matrices(case.batch, problem.n, problem.dtype))
    else:
        reflects = problem.operation.rectangular and problem.op != "gels"
        solve = check_solve if problem.operation.has_columns else check_inversion
        check = check_reflection if reflects else solve
        check(backend, case, matrices(case.batch, problem.n, problem.dtype))


def check_factor(backend: Any, case: Case) -> None:
    """Copies to the device and back, the factorization into memory that nobody has written, the residual."""
    problem, math = case.spec.problem, case.spec.problem.math
    a = matrices(case.batch, problem.n, problem.dtype)
    given = backend.from_dense(a, case.layout)
    assert np.array_equal(backend.host(given.to_dense()), a), f"{case}: the copy differs"
    if case.spec.in_place:
        overwritten = backend.from_dense(a, case.layout)
        result = factor(overwritten, case.spec, out=overwritten)
    else:
        result = factor(given, case.spec, out=backend.empty(problem.n, case.batch, case.layout, problem.dtype))
    backend.check(given, result.L, result.info, math)
    l = backend.host(result.L.to_dense())
    lower = l if problem.uplo == "lower" else np.ascontiguousarray(l.swapaxes(1, 2))
    assert ratios(a, lower).max() <= RATIO_BOUND[math], f"{case}: the factor is wrong"
    if backend.name == "cuda" and backend.kernel(case.spec).repairing is not None:
        check_repaired_factors(backend, case, a)


def check_fill(backend: Any, recipe: str, n: int, layout: Layout) -> None:
    """A data set made on the device, the same bits as the host's, and factored: `failing` has an info for some."""
    batch, start = 75, 1_000_003
    made = backend.empty(n, batch, layout, "float32")
    backend.fill(made, recipe, start=start, seed=5)
    expected = generation.generate(recipe, n=n, start=start, stop=start + batch, seed=5)
    assert np.array_equal(backend.host(made.to_dense()), expected, equal_nan=True), f"{recipe}, n={n}, {layout}"
    info = backend.host(factor(made).info)
    assert info.any() == (recipe == "failing"), f"{recipe}, n={n}: info {info}"


def run_ceilings() -> None:
    """The kernels that measure what the device reaches at most, on sizes that leave a part of a block idle."""
    from batchchol.backends.cuda import memory, support
    from batchchol.backends.cuda.device import device

    source, target = (memory.to_device(np.arange(10_007, dtype=np.uint8), "a copy") for _ in range(2))
    support.copy(device(), int(source.gpudata), int(target.gpudata), 10_007)
    assert np.array_equal(memory.to_host(target), memory.to_host(source))
    for dtype in ("float32", "float64"):
        room = memory.to_device(np.full(1000, 0.5, dtype), "multiply-adds")
        support.multiply_add(device(), int(room.gpudata), 1000, 10, dtype)
        assert np.isfinite(memory.to_host(room)).all()
    support.empty(device())
    device().synchronize()


def find_sanitizer(chosen: str | None) -> str | None:
    """The tool: as chosen, on the PATH, in the toolkit's usual places, or in the wheel's folder."""
    if chosen:
        return shutil.which(chosen)
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    wheel = importlib.util.find_spec("nvidia")
    folders = wheel.submodule_search_locations or [] if wheel else []
    homes += [Path("/usr/local/cuda"), *(home for folder in folders for home in sorted(Path(folder).glob("cu*")))]
    places = ("compute-sanitizer", *(str(home / "bin" / "compute-sanitizer") for home in homes))
    return next(filter(None, map(shutil.which, places)), None)


def summary_of(text: str) -> str:
    """How much was done and what the tool says at its end, or the last line of all."""
    lines = [line.removeprefix("=========").strip() for line in text.splitlines() if line.strip()]
    done = [line for line in lines if re.match(r"\d+ of \d+ kernels", line)]
    said = [line for line in lines if re.match(r"(ERROR|RACECHECK) SUMMARY", line)]
    return "; ".join([*done[-1:], *said[-1:]] or lines[-1:] or ["no message"])


def report(name: str, status: int, seconds: float, log: Path) -> bool:
    """One line; of what was found also the first lines. Whether all was well."""
    text = log.read_text(errors="replace")
    verdict = (
        "clean" if status == 0 else "found errors" if status == _ERRORS_FOUND else f"failed with status {status}"
    )
    print(f"{name:10} {verdict:25} {seconds:7.1f} s   {summary_of(text)}", flush=True)
    if status:
        quoted = islice((line for line in text.splitlines() if line.strip("= ")), _QUOTED_LINES)
        print("".join(f"    {line}\n" for line in quoted) + f"    all of it: {log}", flush=True)
    return status == 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    wanted = Work.asked_for(options)
    try:
        if options.work:
            with every_lane_arrives() if options.every_lane else nullcontext():
                work(wanted)
            return CLEAN
        get_backend("cuda")
    except BackendUnavailable as error:
        print(error)
        return MISSING
    if (sanitizer := find_sanitizer(options.sanitizer)) is None:
        print("no compute-sanitizer: install the CUDA toolkit's, or pip install nvidia-cuda-sanitizer-api")
        return MISSING
    log = options.log or Path(tempfile.mkdtemp(prefix="batchchol-sanitizers-"))
    log.mkdir(parents=True, exist_ok=True)
    # First under no tool, which also compiles what the tools then need not wait for.
    if not check("none", (), wanted, log):
        return FOUND
    wrap = (sanitizer, "--error-exitcode", str(_ERRORS_FOUND), *_OPTIONS)
    clean = [check(tool, (*wrap, "--tool", tool, *TOOLS[tool]), wanted, log) for tool in options.tool or TOOLS]
    return CLEAN if all(clean) else FOUND


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="by default all of them, one after another")
    parser.add_argument("--op", action="append", choices=sorted(OPERATIONS), help="only its kernels; may be repeated")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only kernels, and only of such families")
    parser.add_argument("--part", type=part, default=(1, 1), help="2/3: the second of three parts of the kernels")
    parser.add_argument("--seconds", type=float, default=inf, help="a tool begins with no kernel later than that")
    parser.add_argument("--log", type=Path, help="folder for all that the tools say")
    parser.add_argument("--sanitizer", help="the compute-sanitizer to use")
    parser.add_argument("--work", action="store_true", help="only run the kernels, under no tool")
    parser.add_argument("--every-lane", action="store_true", help="with --work: see tests/sanitizers/arrivals.py")
    return parser.parse_args(arguments)


def part(text: str) -> tuple[int, int]:
    """The numbers of `2/3`."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a part and how many there are, such as 2/3")
    return int(match[1]), int(match[2])


def check(name: str, wrap: Sequence[str], wanted: Work, folder: Path) -> bool:
    """Run the kernels under a tool, and report: whether all was well."""
    log, start = folder / f"{name}.log", time.perf_counter()
    seeing = ("--every-lane",) if name == "racecheck" else ()
    command = (*wrap, *WORKLOAD, *wanted.arguments(), *seeing)
    with open(log, "w") as messages:
        done = subprocess.run(command, stdout=messages, stderr=subprocess.STDOUT, cwd=ROOT, check=False)
    return report(name, done.returncode, time.perf_counter() - start, log)


if __name__ == "__main__":
    sys.exit(main())
