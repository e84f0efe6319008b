"""`python -m batchchol tune --space NAME --budget 5%`: a guided search in place of a sweep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from batchchol.batches.sizes import integer, positive
from batchchol.cli.options import declare, option
from batchchol.errors import BatchcholError
from batchchol.measure.dataset import DataSet, read, read_rows
from batchchol.measure.point import Point
from batchchol.operations.roofline import flops
from batchchol.parallel import available_threads
from batchchol.progress import ProgressDisplay
from batchchol.tune.compile import Built
from batchchol.tune.executors import Place
from batchchol.tune.search import guided
from batchchol.tune.search.cases import Budget, Code, Lesson, budget, code_of, lessons
from batchchol.tune.search.strategies import DEFAULT, STRATEGIES, TOGETHER
from batchchol.tune.search.taught import LEAST_LESSONS
from batchchol.tune.sweep import Summary
from kernelgen import TARGETS

BUDGET = Budget(share=0.05)
"""The default share of the points of each case; see docs/guided-search.md for what it finds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a guided search."""
    group = parser.add_argument_group(
        "a guided search",
        "With --strategy or --budget only part of a space is measured: for each n, math, dtype and batch the budget "
        "says how many points, and the strategy which ones, from what was measured before.",
    )
    declare(
        group,
        option(
            "--strategy", choices=tuple(STRATEGIES), help=f"how points are chosen (default with --budget: {DEFAULT})"
        ),
        option(
            "--budget", type=budget, metavar="POINTS", help="of each case: 40, or 5%% of its points (the default)"
        ),
        option("--seed", type=integer, default=0, help="of the strategy (default: 0)"),
        option(
            "--ahead", type=positive, metavar="COUNT", help="points to choose at a time (default: the compilers')"
        ),
        option(
            "--learn",
            type=Path,
            nargs="+",
            default=[],
            metavar="DATA",
            help="data sets to begin with, of other orders or devices, for the strategy transfer",
        ),
    )


def wanted(arguments: argparse.Namespace) -> bool:
    """Whether a guided search was asked for.

    Raises
    ------
    BatchcholError
        If it was, and there is nothing to search, or the strategy cannot do it.
    """
    if arguments.strategy is None and arguments.budget is None:
        if arguments.learn:
            raise BatchcholError("--learn: got no --budget, say how much of the space to search")
        return False
    if not arguments.space or arguments.compile_only:
        raise BatchcholError(
            "--strategy, --budget: got them without --space, or with --compile-only: say in which space to search; "
            "the search compiles what it asks for"
        )
    if arguments.learn and (arguments.strategy or DEFAULT) not in TOGETHER:
        raise BatchcholError(f"--learn: strategy {arguments.strategy!r} cannot learn, use {' or '.join(TOGETHER)}")
    return True


def search(arguments: argparse.Namespace, space: str, points: Sequence[Point], here: Place, data: DataSet) -> Summary:
    """Search the points of a space, starting from what the data set has; print the best of each case."""
    arch = here.facts()["architecture"]

    def build(asked: Sequence[Point]) -> Built:
        # One kernel to a module: there are about as many kernels as compilers.
        return here.build(asked, arch, jobs=arguments.jobs, per_module=1, time_limit=arguments.compile_limit)

    name = arguments.strategy or DEFAULT
    taught = _lessons(data.folder, arguments.learn, points) if name in TOGETHER else []
    codes = _codes(build(points)) if len(taught) >= LEAST_LESSONS else {}
    searches = guided.prepare(points, name, arguments.budget or BUDGET, data.done, arguments.seed, taught, codes)
    left = sum(each.left for each in searches)
    known = f", {len(taught):,} points known of others" if taught else ""
    print(f"{name}: {len(searches):,} cases, {left:,} of {len(points):,} points to measure{known}", file=sys.stderr)
    try:
        with ProgressDisplay(sys.stderr, "searching") as display:
            return guided.guided(
                searches,
                build,
                here.sweep,
                data,
                ahead=arguments.ahead or arguments.jobs or available_threads(),
                space=space,
                seconds=arguments.duration,
                show=display,
            )
    finally:
        for each in searches:
            print(_said(each))


def _codes(built: Built) -> dict[str, Code]:
    """What compilers say of all points: where much is known of others, it tells which of them a point is like."""
    return {key: code_of(asdict(stats)) for key, stats in built.stats.items()}


def _lessons(folder: Path, others: Iterable[Path], points: Sequence[Point]) -> list[Lesson]:
    """What is known of other cases of the folder, and of other data sets."""
    gpu = TARGETS[points[0].spec.target].gpu
    own = {key for point in points for key in (point.key, point.own.key)}
    found = lessons(read_rows(folder), gpu, own)
    for path in others:
        found += lessons(read(path).to_pylist(), gpu)
    return found


def _said(search: guided.Search) -> str:
    """The result of a case, in one line."""
    count = f"{len(search.told):,} of {len(search.points):,} points"
    if search.best is None:
        return f"{search.case}: no number in {count}"
    point, seconds = search.best
    case = search.case
    gflops = flops(case.n, op=case.op) * case.batch / seconds / 1e9
    chunk = "" if point.chunk is None else f", chunk {point.chunk}"
    return f"{case}: {gflops:,.1f} GFLOP/s, the best of {count}: {point.spec.name}{chunk}"
