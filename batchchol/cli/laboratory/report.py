"""`python -m batchchol report`: what a tuning file or a sweep's data set says, as tables and figures."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from batchchol.batches.sizes import positive
from batchchol.cli.options import declare, option
from batchchol.errors import DataFileError
from batchchol.files import beside, check_folder, check_writable, for_reading
from batchchol.measure import plan_rows
from batchchol.measure.dataset import read_correct
from batchchol.measure.row import Row
from batchchol.measure.timing import busy_warning, disagreement
from batchchol.operations.roofline import fraction_text
from batchchol.report import gflops_plot, larger
from batchchol.report.data import require
from batchchol.report.importance import GOOD, Forest, why_not
from batchchol.report.page import Report, make
from batchchol.report.stability import BOUND, TARGET, Stability
from batchchol.report.table_one import Line
from batchchol.tune.choosing import suite_winners
from batchchol.tune.choosing.winners import grouped, surest

_PARQUET = b"PAR1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the input and the outputs."""
    declare(
        parser,
        option(
            "file",
            type=Path,
            metavar="DATA",
            help="a sweep's folder or Parquet file, or tune's CSV file, that of larger matrices too",
        ),
        option(
            "--winners",
            type=Path,
            metavar="FILE",
            help="no page: put the fastest kernels into a file such as the asv suite's benchmarks/winners.json",
        ),
    )
    data = parser.add_argument_group("of a data set")
    declare(
        data,
        option("--out", type=Path, metavar="FOLDER", help="page and figures (default: DATA-report)"),
        option("--compare", type=Path, metavar="CSV", help="what `compare` wrote: speedups over peers"),
        option(
            "--again", type=Path, metavar="DATA", help="a second sweep of the same space: does it choose the same?"
        ),
        option("--n", type=positive, help="the order of which every kernel is shown (default: 32)"),
        option("--dtype", choices=("float32", "float64"), help="default: that of most points"),
        option("--protocol", help="default: that of most points"),
        option("--family", help="kernels that the figures are about (default: thread)"),
        option("--batch", type=positive, help="default: that of most orders"),
        option("--trees", type=positive, default=500, help="of the forest (default: %(default)s)"),
    )
    csv = parser.add_argument_group("of a CSV file")
    csv.add_argument("--plot", type=Path, metavar="STEM", help="draw GFLOP/s over n to STEM.png and STEM.svg")


def run(arguments: argparse.Namespace) -> int:
    """Print tables, and draw."""
    if arguments.winners is not None:
        check_writable(arguments.winners)
        return _keep_winners(arguments)
    if _is_data_set(arguments.file):
        return _explain(arguments)
    return (_show_larger if plan_rows.is_of_plans(arguments.file) else _show)(arguments)


def _show(arguments: argparse.Namespace) -> int:
    if arguments.plot is not None:
        gflops_plot.require_matplotlib()
        check_folder(arguments.plot.parent)
    measured = read_correct(arguments.file)
    rows = best(measured)
    print(table(rows))
    print(footer(rows))
    if warning := busy_warning(disagreements(measured)):
        print(warning)
    if arguments.plot is not None:
        for path in draw(rows, arguments.plot):
            print(f"plot: {path}")
    return 0


def _show_larger(arguments: argparse.Namespace) -> int:
    """The best plans of larger matrices, what each choice is worth, and a plot."""
    if arguments.plot is not None:
        gflops_plot.require_matplotlib()
        check_folder(arguments.plot.parent)
    measured = plan_rows.read(arguments.file)
    rows = plan_rows.correct(measured)
    if not rows:
        raise DataFileError(arguments.file, "reading", "no plan in it was measured and kept the promise")
    print(larger.table(rows))
    print(f"\n{len(rows)} of {len(measured)} plans; the best with each value over the best of all, mean (cases):\n")
    print(larger.choices(rows))
    if arguments.plot is not None:
        for path in larger.draw(rows, arguments.plot):
            print(f"plot: {path}")
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    folder = arguments.out or beside(arguments.file, "report")
    check_folder(folder)
    require()
    named = ("dtype", "protocol", "family", "batch", "n", "compare", "again", "trees")
    options = {name: getattr(arguments, name) for name in named}
    print(said(make(arguments.file.resolve(), folder, lambda line: print(line, file=sys.stderr), **options)))
    return 0


def _keep_winners(arguments: argparse.Namespace) -> int:
    named = ("dtype", "protocol", "batch")
    chosen = suite_winners.choose(arguments.file, **{name: getattr(arguments, name) for name in named})
    count = suite_winners.write(arguments.winners, chosen)
    print(f"{len(chosen['winners'])} winners of {chosen['device']}, {arguments.file.name}")
    print(f"winners: {arguments.winners} ({count} in all)")
    return 0


def _is_data_set(path: Path) -> bool:
    if path.is_dir() or path.suffix == ".parquet":
        return True
    try:
        with open(path, "rb", opener=for_reading) as file:
            return file.read(len(_PARQUET)) == _PARQUET
    except OSError:
        return False


def said(report: Report) -> str:
    """The report in short, for a terminal."""
    case = report.case
    lines = [
        ", ".join(f"{status}: {count:,}" for status, count in report.statuses.items() if count),
        f"{report.points:,} points: {case.family}, {case.dtype}, batch {case.batch:,}, {case.protocol}",
        "",
        *([report.forest] if isinstance(report.forest, str) else _grown(report.forest)),
        "",
        "the study's conclusions:",
        *(f"  {finding.verdict:12} {finding.topic}: {finding.here}" for finding in report.findings),
        *(["", report.own_code] if report.own_code else []),
        *_table_one(report.table_one),
        *(["", *_stable(report.stability)] if report.stability is not None else []),
        *(f"not drawn: {line}" for line in report.missing),
        "",
        f"page: {report.page}",
    ]
    return "\n".join(lines)


def _grown(forest: Forest) -> list[str]:
    """How well a forest predicts, and what it says of the parameters."""
    seen, unseen = forest.points_held_out, forest.orders_held_out
    lines = [f"forest: {forest.trees} trees, average depth {forest.depth:.1f}"]
    lines += [f"  held-out points: R2 {seen.r2:.3f}, RMSE {seen.rmse:,.1f} GFLOP/s"]
    if unseen is not None:
        lines += [f"  held-out orders: R2 {unseen.r2:.3f}, RMSE {unseen.rmse:,.1f} GFLOP/s"]
        lines += [] if unseen.r2 >= GOOD else [f"  {why_not(unseen, forest.compiled)}"]
    lines += ["", "increase in MSE over the variance, a parameter's values shuffled:"]
    return lines + [f"  {line.parameter.name:10} {line.share:8.1%}" for line in forest.importances]


def _table_one(lines: Sequence[Line]) -> list[str]:
    """Importance by the study's measure, beside its numbers."""
    if not lines:
        return []
    rows = [f"  {line.parameter:10} {line.here:8.1f} {line.study:8.1f}" for line in lines]
    return ["", "table I, %IncMSE here and in the study:", *rows]


def _stable(compared: Stability) -> list[str]:
    agreeing, sizes = int(compared.table["agrees"].sum()), len(compared.table)
    return [
        f"two sweeps: {agreeing} of {sizes} sizes have the same winner or one within {BOUND:.0%} "
        f"({compared.share:.1%}, expected {TARGET:.0%}); the very same {compared.same}; at most "
        f"{compared.worst:.1%} behind",
        *(f"  n = {row.n} {row.math}: {row.first} / {row.second}" for row in compared.apart.itertuples()),
    ]


def best(rows: Iterable[Row]) -> list[Row]:
    """The fastest row of each case, of those with the most samples of the case."""
    found = [surest(alike) for alike in grouped(rows, lambda row: (*_case(row), row.about["device"])).values()]
    return sorted(found, key=_case)


def _case(row: Row) -> tuple[str, str, int, int, str]:
    problem = row.spec.problem
    return problem.dtype, row.spec.problem.math, problem.n, row.point.batch, row.point.protocol


def disagreements(rows: Iterable[Row]) -> list[float]:
    """By how much measurements of the same kernel on the same batch differ."""
    same = grouped(rows, lambda row: (row.spec, row.point.batch, row.point.protocol, row.about["device"]))
    times = ([row.median_seconds for row in found] for found in same.values())
    return [disagreement(min(found), max(found)) for found in times]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table; without columns that are empty in all of them."""
    columns = {
        "n": [f"{row.spec.problem.n}" for row in rows],
        "batch": [f"{row.point.batch:,}" for row in rows],
        "math": [row.spec.problem.math for row in rows],
        "protocol": [row.point.protocol for row in rows],
        "GFLOP/s": [f"{row.gflops:,.0f}" for row in rows],
        "roofline": [fraction_text(row.roofline_seconds / row.median_seconds) for row in rows],
        "floor, us": ["" if math.isnan(row.floor_seconds) else f"{row.floor_seconds * 1e6:.1f}" for row in rows],
        "spread": [f"{row.spread:.1%}" for row in rows],
        "residual": [f"{row.ratio:.3f}" for row in rows],
        "spec": [f"`{row.spec.name}`" for row in rows],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    rules = ("---" if name in ("math", "protocol", "spec") else "---:" for name in columns)
    lines = (columns, rules, *zip(*columns.values(), strict=True))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def footer(rows: Sequence[Row]) -> str:
    """Where and when, and how often each was timed."""
    machines = ", ".join(sorted({str(row.about["device"]) for row in rows}))
    dates = ", ".join(sorted({row.day for row in rows}))
    samples = ", ".join(map(str, sorted({row.samples for row in rows})))
    roofline = "" if all(math.isnan(row.roofline_seconds) for row in rows) else "; roofline by the machine's own copy"
    return f"\n{machines}; {dates}; medians of {samples} samples; cold data{roofline}"


def draw(rows: Sequence[Row], stem: Path) -> list[Path]:
    """GFLOP/s over n, a line for each batch of the first protocol and accuracy class; the roofline above."""
    first = rows[0]
    dtype, accuracy, *_, protocol = _case(first)
    chosen = [row for row in rows if (*_case(row)[:2], row.point.protocol) == (dtype, accuracy, protocol)]
    points = [
        gflops_plot.Point(
            _label(row, chosen),
            row.spec.problem.n,
            row.gflops,
            row.gflops * row.median_seconds / row.roofline_seconds,
        )
        for row in chosen
    ]
    title = f"Batched Cholesky, {dtype}, {accuracy}, {protocol} launches"
    subtitle = f"{first.about['device']}, {first.day}, cold data, medians"
    return gflops_plot.draw(points, stem, title=title, subtitle=subtitle)


def _label(row: Row, rows: Sequence[Row]) -> str:
    """The batch, or "largest" where each n has its own, chosen to fill an amount of memory."""
    batch = row.point.batch
    orders = {other.spec.problem.n for other in rows}
    everywhere = orders == {other.spec.problem.n for other in rows if other.point.batch == batch}
    return f"batch {batch:,}" if everywhere else "largest batch"
