"""`python -m batchchol tune --n N --batch B`: one case at a time, into the user's table."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence

from batchchol.backends import DEFAULT_BACKEND, chosen_backend
from batchchol.batches.host_memory import require_memory
from batchchol.batches.sizes import matrices, seconds
from batchchol.cli import interrupts
from batchchol.cli.options import declare, option
from batchchol.defaults import lookup, user
from batchchol.defaults.entries import Tuned
from batchchol.defaults.request import Request
from batchchol.errors import BatchcholError
from batchchol.files import check_folder
from batchchol.measure.bench import FEW_POINTS
from batchchol.measure.energy import NO_COUNTER
from batchchol.measure.process import Measurer
from batchchol.measure.timing import busy_warning
from batchchol.operations.roofline import flops
from batchchol.parallel import available_threads
from batchchol.progress import ProgressDisplay
from batchchol.tune.candidates import families_of
from batchchol.tune.choosing.contest import Site, spec_of
from batchchol.tune.general_candidates import OPS
from batchchol.tune.one_case import Outcome, tune_case
from kernelgen import KernelSpec, Problem, Schedule

LAYOUTS = ["canonical", "chunked"]
"""What `cholesky` and `Batch` use: the layouts that are tuned by default."""
OBJECTIVES = ("time", "energy")
_STAYS = "the current choices stay; recorded as evidence"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of tuning single cases."""
    group = parser.add_argument_group(
        "one case",
        "With --n, and neither --space nor --out or --table, each order and batch is tuned by itself, promising "
        "kernels first, and the next call uses what has won: on arrays (--layout canonical), and on batches in "
        "chunks (--layout chunked). An interrupt ends the search, and what was measured still counts.",
    )
    declare(
        group,
        option("--seconds", type=seconds, default=50.0, help="time limit of an order and batch (default: 50)"),
        option(
            "--objective",
            choices=OBJECTIVES,
            default=OBJECTIVES[0],
            help="what wins: the fastest, or of the fastest at most 20 the one that uses the fewest joules, by the "
            "GPU's or the CPU's counter: two minutes more (default: %(default)s)",
        ),
        option("--op", choices=OPS, default=OPS[0], help="the operation to tune (default: potrf)"),
        option("--no-table", action="store_true", help="leave the user's table alone, also at the end of a space"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Tune case by case; the user's table has each before the next begins."""
    if not arguments.n:
        raise BatchcholError("--n: not given, say which orders, such as 32, or a --space; see tune --help")
    backend = chosen_backend(arguments.backend) or DEFAULT_BACKEND
    threads = arguments.threads or (available_threads() if backend == "cpu" else 1)
    dtype = arguments.dtype or "float32"
    asked = itertools.product(arguments.n, arguments.batch or ["16384"], arguments.math or ["ieee"])
    limit = arguments.time_limit or min(60.0, arguments.seconds)
    with (
        interrupts.advice("the cases printed above are decided; run the command again for the others"),
        Measurer(backend, settings=FEW_POINTS, time_limit=limit) as measurer,
    ):
        facts = measurer.facts()
        if arguments.objective == "energy" and not facts.get("counts_joules"):
            raise BatchcholError(NO_COUNTER)
        for n, size in itertools.product(arguments.n, arguments.batch or ["16384"]):
            require_memory(matrices(size, n, dtype), n, dtype, facts["free_bytes"])
        site = Site.of(facts, measurer.about(dtype, threads), threads)
        if arguments.target not in (None, site.target):
            raise BatchcholError(
                f"--target: got {arguments.target!r}, expected {site.target!r}, which is used here; with --out "
                "others are measured too"
            )
        if not arguments.no_table and user.enabled():
            check_folder(user.path_of(site.device, site.arch or site.target).parent)
        chosen = families(arguments.family or "all", site.target)
        for n, size, math in asked:
            problem = Problem(n, dtype, op=arguments.op, math=math)
            wanted = site.request(problem, matrices(size, n, dtype))
            if interrupt := _tune(wanted, arguments, chosen, site, measurer):
                raise interrupt
    return 0


def _tune(
    wanted: Request, arguments: argparse.Namespace, families: Sequence[str], site: Site, measurer: Measurer
) -> KeyboardInterrupt | None:
    """Tune one case, keep and print the result; return what interrupted it."""
    kinds = arguments.layout or LAYOUTS
    with ProgressDisplay(sys.stderr, f"n={wanted.problem.n}, batch={wanted.size:,}") as display:
        outcome = tune_case(
            measurer,
            site,
            wanted,
            kinds,
            families,
            seconds=arguments.seconds,
            objective=arguments.objective,
            jobs=arguments.jobs,
            show=display,
        )
    _print(wanted, outcome, site)
    if arguments.no_table or not user.enabled():
        why = "--no-table" if arguments.no_table else f"{user.VARIABLE}=shipped"
        print(f"{why}: nothing was written")
    else:
        path = lookup.learn(site.device, site.target, site.arch, outcome.entries, outcome.placements)
        changed = any(entry.schedule != entry.incumbent for entry in outcome.entries)
        changed |= any(placed.layout != placed.incumbent for placed in outcome.placements)
        print(f"{path}: {'the next call uses it' if changed else _STAYS}")
    return outcome.interrupt


def families(asked: str, target: str) -> tuple[str, ...]:
    """The families that --family means; refuses one that the target lacks."""
    known = families_of(target)
    if asked not in ("all", *known):
        raise BatchcholError(f"--family: got {asked!r}, target {target!r} has {', '.join(known)}")
    return known if asked == "all" else (asked,)


def _print(wanted: Request, outcome: Outcome, site: Site) -> None:
    """The cases, each with the current schedule and the one that is used from now on or comes next."""
    problem, where = wanted.problem, f"{site.device} ({site.arch or site.target})"
    early = ", interrupted" if outcome.interrupt else ""
    named = "" if problem.op == "potrf" else f"{problem.op}, "
    print(
        f"{named}n={problem.n}, batch={wanted.size:,}, {problem.dtype}, {problem.math} on {where}: "
        f"{outcome.measured} of {outcome.candidates} candidates in {outcome.seconds:.0f} s{early}"
    )
    print(f"{'where':22} {'schedule':56} {'ns/matrix':>10} {'GFLOP/s':>9}")
    for entry in outcome.entries:
        for line in describe(entry, site.target):
            print(line)
    if warning := busy_warning(entry.margin for entry in outcome.entries):
        print(warning)
    for placed in outcome.placements:
        what = "batches" if placed.section == "layouts" else "arrays"
        done = "stay in" if placed.layout == placed.incumbent else f"go from {placed.incumbent} to"
        rate = "" if placed.incumbent_ns is None else f" (before: {placed.incumbent_ns:g})"
        print(f"{what} {done} {placed.layout}: {placed.ns:g} ns a matrix{rate}, margin {placed.margin:.1%}")


def describe(entry: Tuned, target: str) -> list[str]:
    """The lines of an entry: the current schedule and the other, what they take, and which is used from now on."""
    stays = entry.schedule == entry.incumbent
    other, ns = (entry.runner_up, entry.runner_up_ns) if stays else (entry.schedule, entry.ns)
    # The last words of a case are where its matrices lie.
    where = str(entry.case).split(", ")[-1]
    lines = [_line(where, entry, entry.incumbent, entry.incumbent_ns, target, "current" + ", stays" * stays)]
    if entry.about.get("objective") == "energy":
        return [lines[0], *_energy_lines(entry, where, target)]
    if other is not None and ns is not None:
        lines.append(_line("", entry, other, ns, target, _verdict(entry, ns, stays)))
    return lines


def _energy_lines(entry: Tuned, where: str, target: str) -> list[str]:
    """What has the fewest joules of the finalists, and how many."""
    used, current = entry.about["nanojoules"], entry.about.get("incumbent_nanojoules")
    replaced = entry.schedule != entry.incumbent
    before = f", the current {int(current) / 1e3:,.4g}" if replaced and current is not None else ""
    words = f"{int(used) / 1e3:,.4g} µJ a matrix{before}, the fewest of {entry.about['finalists']}"
    return [_line("", entry, entry.schedule, entry.ns, target, words)]


def _verdict(entry: Tuned, ns: float, stays: bool) -> str:
    """How another schedule compares with the current one, which it replaces if faster by more than the margin."""
    current = entry.incumbent_ns
    if current is None:
        return "the current one could not run"
    if ns >= current:
        return f"{ns / current - 1:.1%} slower"
    return f"{current / ns - 1:.1%} faster, {'within' if stays else 'past'} the margin of {entry.margin:.1%}"


def _line(where: str, entry: Tuned, schedule: Schedule, ns: float | None, target: str, words: str) -> str:

    name = short_name(spec_of(entry.case, entry.n, schedule, target))
    numbers = " " * 20 if ns is None else f"{ns:10.4g} {flops(entry.n, op=entry.case.op) / ns:9.1f}"
    return f"{where:22} {name:56} {numbers}  {words}".rstrip()


def short_name(spec: KernelSpec) -> str:
    """A kernel's name without what all of a case have in common."""
    return spec.name.split(f"_{spec.order}_", 1)[1]
