"""`python -m batchchol replay`: how many measurements each search strategy needs, by a data set that has them all."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from batchchol.batches.sizes import names, positive
from batchchol.cli.options import declare, option
from batchchol.files import beside, check_folder, make_folder, replace_file
from batchchol.parallel import available_threads
from batchchol.progress import ProgressDisplay
from batchchol.report import gflops_plot, replay_figure, style
from batchchol.tune.choosing.winners import grouped
from batchchol.tune.search import replay
from batchchol.tune.search import runs as searches
from batchchol.tune.search.replay import CLOSE, FARTHEST, SHARE, Line, Run, Surface, line
from batchchol.tune.search.strategies import STRATEGIES

_CSV, _RUNS = "replay.csv", "runs.csv"
_HEADER = (
    "n,dtype,math,batch,target,points,within_5_percent,within_1_percent,noise,strategy,close,runs,"
    "median,p90,median_share,p90_share,runs_within_5_percent_of_points,runs_within_3_percent_of_points"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the data set and the strategies."""
    declare(
        parser,
        option("data", type=Path, metavar="DATA", help="a sweep's folder or Parquet file"),
        option(
            "--strategies",
            type=names((*STRATEGIES, "taught")),
            default=tuple(STRATEGIES),
            metavar="LIST",
            help=f"default: {','.join(STRATEGIES)}; taught is transfer with one case that knows all other orders",
        ),
        option("--repeats", type=positive, default=20, help="runs of a strategy in a case (default: 20)"),
        option("--ahead", type=positive, default=1, help="points asked for at a time (default: 1)"),
        option("--jobs", type=positive, help="processes (default: the cores)"),
        option("--runs", type=Path, metavar="FILE", help="searches that an earlier replay kept: none is made again"),
        option("--out", type=Path, metavar="FOLDER", help="figure, table and searches (default: DATA-replay)"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Search, print the table, write table and figure."""
    gflops_plot.require_matplotlib("search")
    folder = arguments.out or beside(arguments.data, "replay")
    # Before the work, so that no work is lost to a folder that cannot be written.
    check_folder(folder)
    surfaces = replay.load(arguments.data, lambda line: print(f"batchchol: warning: {line}", file=sys.stderr))
    points = sum(len(surface.points) for surface in surfaces)
    print(f"{arguments.data}: {len(surfaces):,} cases, {points:,} points", file=sys.stderr)
    runs = searches.read(arguments.runs, surfaces) if arguments.runs else _searched(surfaces, arguments)
    print(table(replay.lines(surfaces, runs)))
    make_folder(folder)
    replace_file(folder / _CSV, csv(surfaces, runs).encode())
    replace_file(folder / _RUNS, searches.written(surfaces, runs).encode())
    repeats = len({run.repeat for run in runs})
    title = f"{arguments.data.name}: {len(surfaces)} cases, {repeats} runs of each at most"
    drawn = style.save(lambda: replay_figure.draw(surfaces, runs, title), folder / "replay")
    for path in (folder / _CSV, folder / _RUNS, *drawn):
        print(path)
    return 0


def _searched(surfaces: Sequence[Surface], arguments: argparse.Namespace) -> list[Run]:
    with ProgressDisplay(sys.stderr, "searching") as display:
        return replay.replay(
            surfaces,
            arguments.strategies,
            arguments.repeats,
            processes=arguments.jobs or available_threads(),
            ahead=arguments.ahead,
            show=display,
        )


def table(lines: Sequence[Line]) -> str:
    """What each strategy needed over all cases."""
    found = [
        f"{'':22} {'measurements':>15} {'of the points':>17} {'there within':>13}",
        f"{'strategy':11} {'close':>10} {'median':>7} {'9 of 10':>7} {'median':>8} {'9 of 10':>8} "
        f"{f'{SHARE:.0%} of them':>13}",
    ]
    for each in lines:
        counts = " ".join(f"{_known(value, ',.0f'):>7}" for value in (each.median, each.high))
        shares = " ".join(f"{_known(value, '.1%'):>8}" for value in (each.median_share, each.high_share))
        found.append(f"{each.strategy:11} {f'within {each.close:.0%}':>10} {counts} {shares} {each.within:>13.0%}")
    return "\n".join([*found, f"-: not within {FARTHEST:.0%} of the points"])


def csv(surfaces: Sequence[Surface], runs: Sequence[Run]) -> str:
    """The same for each case, a line a strategy and closeness; `inf` is what was not reached."""
    found = [_HEADER]
    for (number, _), mine in sorted(grouped(runs, lambda run: (run.number, run.strategy)).items()):
        surface = surfaces[number]
        case = surface.case
        about = (case.n, case.dtype, case.math, case.batch, case.target, len(surface.points))
        near = (*(surface.near(close) for close in CLOSE), f"{surface.noise:.4g}")
        for close in CLOSE:
            told = line(surfaces, mine, close)
            numbers = (told.median, told.high, told.median_share, told.high_share, told.within, told.early)
            values = (*about, *near, told.strategy, close, told.runs, *(f"{value:.4g}" for value in numbers))
            found.append(",".join(map(str, values)))
    return "\n".join(found) + "\n"


def _known(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"
