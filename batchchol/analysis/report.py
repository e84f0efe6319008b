"""Make the report of a data set: figures in a folder, and one page that needs nothing else."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from batchchol.analysis import best, conclusions, figures, forest, points, speedups
from batchchol.analysis.conclusions import Finding
from batchchol.analysis.figures import Drawing
from batchchol.analysis.forest import Forest
from batchchol.analysis.points import Case, Data
from batchchol.analysis.speedups import Speedups
from batchchol.cache import replace_file
from batchchol.errors import BatchcholError, DataFileError
from kernelgen.schedules import LOOKINGS, UNROLLS

PAGE = "report.html"
_SCATTER_ORDER = 32
_PROVENANCE = (
    "device",
    "gpu",
    "cpu",
    "driver",
    "toolkit",
    "compiler",
    "version",
    "commit",
    "python",
    "numpy",
    "pycuda",
)
# What the study calls a lost point is one that a sweep had reason to expect a number of.
_EXPECTED = ("timeout", "unsupported")


@dataclass(frozen=True)
class Options:
    """What a report is about; None is the data's commonest.

    Attributes
    ----------
    compare : Path, optional
        The CSV file of a comparison with peers.
    n : int, optional
        The order of which every kernel is shown.
    trees : int
        Of the forest.
    """

    dtype: str | None = None
    protocol: str | None = None
    family: str | None = None
    batch: int | None = None
    n: int | None = None
    compare: Path | None = None
    trees: int = forest.TREES


@dataclass(frozen=True)
class Report:
    """What was found out, and where it was written."""

    page: Path
    case: Case
    points: int
    statuses: Mapping[str, int]
    best: Any
    drawings: tuple[Drawing, ...]
    missing: tuple[str, ...]
    forest: Forest | str
    findings: tuple[Finding, ...]
    speedups: Speedups | None
    provenance: Mapping[str, str]

    @property
    def lost(self) -> float:
        """The share of points that have no number for another reason than a time limit or being impossible."""
        lost = sum(count for status, count in self.statuses.items() if status not in {"correct", *_EXPECTED})
        return lost / sum(self.statuses.values())


def make(path: Path, folder: Path, options: Options, say: Callable[[str], None] = lambda _: None) -> Report:
    """Read a data set and write its figures and its page to `folder`; `say` is told what is being done.

    Raises
    ------
    BatchcholError
        If a package is missing, a file cannot be read or written, or nothing in the data is as asked for.
    """
    wanted = {name: getattr(options, name) for name in ("dtype", "protocol", "family", "batch")}
    data = points.load(path, say)
    case = points.choose(data.correct, **wanted)
    rows = points.of_case(data.correct, case)
    if options.n is not None and options.n not in set(rows["n"]):
        raise BatchcholError(f"--n: got {options.n}, and the data have {best.orders(sorted(rows['n'].unique()))}")
    compared = None if options.compare is None else speedups.read(options.compare, case.dtype, case.batch)
    similar = _same_but_batch(data, case)
    say(f"{len(similar):,} points for the forest of {options.trees} trees, cross-validated by n")
    grown = forest.grow(similar, options.trees)
    math = "fast" if "fast" in set(rows["math"]) else "ieee"
    say("figures")
    drawn = list(_figures(data, case, rows, math, folder, compared, grown, options))
    report = Report(
        folder / PAGE,
        case,
        len(rows),
        data.statuses,
        best.fastest(_same_problem(data, case), ["n", "math"]),
        tuple(each for each in drawn if isinstance(each, Drawing)),
        tuple(each for each in drawn if isinstance(each, str)),
        grown,
        tuple(conclusions.findings(rows, math, grown, compared)),
        compared,
        _provenance(data.correct),
    )
    _write(report, path)
    return report


def _same_problem(data: Data, case: Case) -> Any:
    """Points of all families, own code measured again included: what a user would choose from."""
    rows = data.correct
    return rows[rows["dtype"].eq(case.dtype) & rows["protocol"].eq(case.protocol) & rows["batch"].eq(case.batch)]


def _same_but_batch(data: Data, case: Case) -> Any:
    rows = data.correct
    chosen = rows["dtype"].eq(case.dtype) & rows["protocol"].eq(case.protocol) & rows["family"].eq(case.family)
    return rows[chosen & ~rows["again"]]


def _figures(
    data: Data,
    case: Case,
    rows: Any,
    math: str,
    folder: Path,
    compared: Speedups | None,
    grown: Forest | str,
    options: Options,
) -> Iterator[Drawing | str]:
    """The study's figures in their order; a sentence in place of each that cannot be drawn."""
    about = f"Family {case.family}, {case.dtype}, batch {case.batch:,}, {case.protocol} calls, cold data, medians."
    table, roofline = best.by(rows, "math"), rows.groupby("n")["roofline_gflops"].max()
    title = "Best performance for each n"
    yield figures.draw(13, "best", title, about, folder, lambda: figures.maths(table, roofline))
    if compared is None:
        yield "Figure 14, speedup over peers: no comparison was given (`--compare FILE`)."
    else:
        caption = f"Same run, same protocol, each in its own layout: {compared.note}."
        caption += f" Absent: {', '.join(compared.absent)}." if compared.absent else ""
        yield figures.draw(
            14, "peers", "Speedup over peers", caption, folder, lambda: figures.speedups(compared.table)
        )
    one = rows[rows["math"] == math]
    yield from _levels(one, f"{about} The best of all other parameters, {math} math.", folder)
    yield _scatter(one, about, math, folder, options.n)
    if isinstance(grown, str):
        yield f"Figure 21, predicted against observed: {grown}"
    else:
        caption = (
            "Points that the forest had not seen: left a random fifth of them, right those of orders it had not seen."
        )
        title = "Predicted against observed performance"
        yield figures.draw(21, "forest", title, caption, folder, lambda: figures.predictions(grown))


def _levels(one: Any, about: str, folder: Path) -> Iterator[Drawing | str]:
    chunked = one[one["chunk"].notna()]
    each = (
        (15, "nb", one.assign(nb=one["nb"].astype("Int64"))),
        (16, "looking", one),
        (17, "layout", one),
        (18, "chunk", chunked.assign(chunk=chunked["chunk"].astype("Int64"))),
        (19, "unroll", one),
    )
    order = {"looking": LOOKINGS, "unroll": UNROLLS}
    titles = {"nb": "tile size", "looking": "order of evaluation", "layout": "layout: with and without chunks"}
    titles |= {"chunk": "chunk size", "unroll": "unrolling"}
    for number, column, rows in each:
        title = f"Best performance for each {titles[column]}"
        known = rows[rows[column].notna()]
        if known[column].nunique() < 2:
            yield f"Figure {number}, {titles[column]}: the data have no two values of `{column}`."
            continue
        table = best.by(known, column)
        table = table[sorted(table.columns, key=order[column].index)] if column in order else table
        table.columns = [int(value) if column in {"nb", "chunk"} else value for value in table.columns]
        yield figures.draw(number, column, title, about, folder, partial(figures.levels, table, column))


def _scatter(one: Any, about: str, math: str, folder: Path, wanted: int | None) -> Drawing | str:
    known = one.assign(unroll=one["unroll"].fillna("tiles"))
    known = known[known["nb"].notna() & known["looking"].notna()]
    if known.empty:
        return "Figure 20, every kernel of one n: the points have no nb and looking."
    n = wanted or (_SCATTER_ORDER if _SCATTER_ORDER in set(known["n"]) else int(known["n"].value_counts().index[0]))
    rows = known[known["n"] == n]
    caption = f"{about} {math} math, {len(rows):,} points."
    return figures.draw(
        20, "every-kernel", f"Every kernel at n = {n}", caption, folder, lambda: figures.every_kernel(rows)
    )


def _provenance(rows: Any) -> dict[str, str]:
    """What the rows say of machine and software, and in which days they were measured."""
    told = {name: rows[name].dropna().unique() for name in _PROVENANCE}
    found = {name: ", ".join(sorted(map(str, values))) for name, values in told.items() if any(values)}
    dates = rows["date"].dropna()
    if len(dates):
        found["dates"] = " to ".join(dict.fromkeys((min(dates)[:16], max(dates)[:16])))
    spread = rows["spread"].dropna()
    if len(spread):
        found["spread"] = f"{spread.median():.2%} in the median, {spread.quantile(0.95):.2%} at 95% of the points"
    copies = rows["copy_bytes_per_second"].dropna()
    if len(copies):
        found["copy rate"] = f"{copies.median() / 1e9:,.0f} GB/s, measured by the sweep"
    return found


def _write(report: Report, source: Path) -> None:
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("batchchol.analysis"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"inline": _inline, "marked": _marked}
    page = environment.get_template("report.html.jinja").render(
        report=report,
        source=source.name,
        conclusions=conclusions,
        forest=forest,
        no_forest=isinstance(report.forest, str),
    )
    try:
        report.page.parent.mkdir(parents=True, exist_ok=True)
        replace_file(report.page, page.encode())
    except OSError as error:
        raise DataFileError(report.page, "writing", error.strerror or str(error)) from error


def _marked(text: str) -> Any:
    """What is between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))


def _inline(path: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
