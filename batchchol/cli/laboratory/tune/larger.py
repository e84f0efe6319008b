"""`python -m batchchol tune --n N`, N above the orders of kernels: all ways to factor, into the user's table."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from batchchol.algorithms.plan_tables import chosen
from batchchol.algorithms.plans import values_of
from batchchol.artifacts.cuda_modules import build_all
from batchchol.backends import chosen_backend, get_backend
from batchchol.backends.cuda.device import device
from batchchol.batches.sizes import matrices
from batchchol.cli import interrupts
from batchchol.compare.large import PlanBench
from batchchol.defaults import lookup, user
from batchchol.defaults.entries import Planned
from batchchol.errors import BatchcholError
from batchchol.files import check_folder, check_writable, replace_file
from batchchol.measure import plan_rows
from batchchol.measure.plan_rows import PlanRow
from batchchol.measure.provenance import about
from batchchol.measure.timing import spread
from batchchol.operations.roofline import flops
from batchchol.progress import ProgressDisplay
from batchchol.tune.larger import Tried, Wanted, candidates, sources, table_of, tune_larger
from kernelgen import CUDA, MAX_N

_STAYS = "the current plan stays; recorded as evidence"
# What only kernels have: none of it is chosen here.
_OF_KERNELS = ("family", "layout", "math", "target", "table", "space", "source", "threads")


def is_larger(orders: Sequence[int] | None) -> bool:
    """Whether orders are above those of kernels.

    Raises
    ------
    BatchcholError
        If some are, and some are not.
    """
    above = [n > MAX_N for n in orders or ()]
    if any(above) and not all(above):
        raise BatchcholError(f"--n: got orders to {MAX_N} and larger ones: tune them apart, no kernel is for those")
    return any(above)


def run(arguments: argparse.Namespace) -> int:
    """Tune case by case; the user's table has each before the next begins."""
    _check(arguments)
    dtype, gpu = arguments.dtype or "float32", device()
    keeps = not arguments.no_table and user.enabled()
    if keeps:
        check_folder(user.path_of(gpu.model, gpu.architecture).parent)
    with interrupts.advice("the cases printed above are decided; run the command again for the others"):
        for n, size in itertools.product(arguments.n, arguments.batch or ["1"]):
            _tune(arguments, n, matrices(size, n, dtype), dtype, keeps=keeps)
    return 0


def choose(files: Sequence[Path], table: Path) -> int:
    """Make the table of plans that ships, or one like it, from files of what was measured."""
    check_writable(table)
    made = table_of(plan_rows.correct(row for path in files for row in plan_rows.read(path)))
    replace_file(table, made.text().encode())
    print(f"{table}: {len(made.entries)} entries of {made.about.get('gpu')}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    given = [name for name in _OF_KERNELS if getattr(arguments, name) not in (None, [], ())]
    if given:
        name = {"source": "from"}.get(given[0], given[0])
        raise BatchcholError(
            f"--{name}: got it for orders above {MAX_N}, whose plans have no such choice: leave it out"
        )
    if (backend := chosen_backend(arguments.backend)) != "cuda":
        raise BatchcholError(
            f"--backend: got {backend or 'cpu'!r}, expected 'cuda' for orders above {MAX_N}: on a CPU LAPACK "
            "factors them, and there is nothing to tune"
        )
    if arguments.out:
        check_writable(arguments.out)


def _tune(arguments: argparse.Namespace, n: int, batch: int, dtype: str, *, keeps: bool) -> None:
    """Tune one case, keep and print the result."""
    gpu, origin = device(), about(get_backend("cuda"))
    wanted = Wanted(n, batch, dtype, chosen(gpu, n, batch, dtype, upper=False))
    plans = candidates(wanted)
    with ProgressDisplay(sys.stderr, "compiling") as display:
        build_all(sources(plans, wanted.n), gpu.architecture, jobs=arguments.jobs, per_module=1, progress=display)
    bench = PlanBench(n, batch, dtype)
    said = {name: origin[name] for name in ("driver", "toolkit", "version", "commit") if origin.get(name)}
    said["protocol"] = bench.protocol
    with ProgressDisplay(sys.stderr, f"n={n}, batch={batch:,}") as display:
        entry, tried = tune_larger(bench.sample, wanted, plans, said, seconds=arguments.seconds, show=display)
    if arguments.out:
        plan_rows.append(arguments.out, [_row(wanted, each, bench.protocol, origin) for each in tried])
    _print(entry, tried, gpu.model)
    if keeps:
        path = lookup.learn(gpu.model, CUDA.name, gpu.architecture, (), plans=[entry])
        print(f"{path}: {_STAYS if entry.kept else 'the next call uses it'}")
    else:
        print(f"{'--no-table' if arguments.no_table else f'{user.VARIABLE}=shipped'}: nothing was written")


def _row(wanted: Wanted, tried: Tried, protocol: str, origin: dict[str, str]) -> PlanRow:
    named = wanted.dtype, wanted.n, wanted.batch, values_of(tried.plan)
    if not tried.seconds:
        return PlanRow(*named, message=tried.message, about=origin)
    measured = tried.median, spread(tried.seconds), len(tried.seconds), tried.ratio
    return PlanRow(*named, *measured, protocol, about=origin)


def _print(entry: Planned, tried: Sequence[Tried], model: str) -> None:
    measured = sum(bool(each.seconds) for each in tried)
    print(f"n={entry.n}, batch={entry.batch:,}, {entry.dtype} on {model}: {measured} of {len(tried)} ways measured")
    stays = entry.plan == entry.incumbent
    other = ("next best", entry.runner_up, entry.runner_up_ns) if stays else ("used now", entry.plan, entry.ns)
    for what, plan, taken in (("current", entry.incumbent, entry.incumbent_ns), other):
        if plan is not None and taken is not None:
            rate, name = flops(entry.n) / taken, plan_rows.words(plan)
            print(f"  {what:10} {taken / 1e3:10,.5g} \N{MICRO SIGN}s a matrix {rate:9,.0f} GFLOP/s  {name}")
    print(f"  margin {entry.margin:.1%}")
