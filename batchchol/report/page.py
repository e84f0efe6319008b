"""Make the report of a data set: figures in a folder, and one page that needs nothing else."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchchol.errors import BatchcholError
from batchchol.files import make_folder, replace_file
from batchchol.operations.roofline import BAD_CEILING, MOST_FRACTION, fraction_text
from batchchol.report import figure_list, importance, pivots, speedups, stability, study_2017, table_one, wording
from batchchol.report.data import Case, alike, choose, load, of_case
from batchchol.report.figure_list import Drawing, Material
from batchchol.report.stability import Stability

PAGE = "report.html"
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
# What the study calls a lost point is one that should have had a number.
_EXPECTED = ("timeout", "unsupported")


@dataclass(frozen=True)
class Report(Material):
    """What was found out, and where it was written."""

    page: Path
    statuses: Mapping[str, int]
    best: Any
    own_code: str
    drawings: tuple[Drawing, ...]
    missing: tuple[str, ...]
    provenance: Mapping[str, str]
    table_one: tuple[table_one.Line, ...]

    @property
    def points(self) -> int:
        """How many the figures show."""
        return len(self.rows)

    @property
    def headlines(self) -> Iterator[tuple[str, str]]:
        """The most telling numbers, each with what it is."""
        yield f"{self.statuses['correct']:,}", f"correct points; {self.lost:.1%} of all were lost"
        first = self.best.loc[self.best["gflops"].idxmax()]
        yield f"{wording.rate(first['gflops'])} GFLOP/s", f"the fastest kernel, at n = {first['n']}"
        share = self.best["gflops"] / self.best["roofline_gflops"]
        if share.max() > MOST_FRACTION:
            count = int((share > MOST_FRACTION).sum())
            yield BAD_CEILING, f"{count} of {len(share)} kernels seem faster than the roofline: sweep again"
        elif share.notna().any():
            yield f"{share.max():.0%} of the roofline", f"at best, at n = {self.best.loc[share.idxmax(), 'n']}"
        verdicts = [each.verdict for each in self.findings if each.verdict in {"agrees", "partly", "differs"}]
        yield f"{verdicts.count('agrees')} of {len(verdicts)}", "statements about earlier GPUs hold here"
        if not isinstance(self.forest, str):
            yield f"R² = {self.forest.points_held_out.r2:.3f}", "of the forest, for points it had not seen"
            if self.forest.orders_held_out is not None:
                yield f"R² = {self.forest.orders_held_out.r2:.3f}", "of the forest, for orders it had not seen"
        if self.stability is not None:
            yield f"{self.stability.share:.0%} of the sizes", "have the same winner, or one as good, in two sweeps"

    @property
    def lost(self) -> float:
        """The share of points without a number, apart from those that ran out of time or cannot run."""
        lost = sum(count for status, count in self.statuses.items() if status not in {"correct", *_EXPECTED})
        return lost / sum(self.statuses.values())


def make(
    path: Path,
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
    *,
    compare: Path | None = None,
    again: Path | None = None,
    n: int | None = None,
    trees: int = importance.TREES,
    **wanted: Any,
) -> Report:
    """Read a data set and write its figures and its page to `folder`; `say` is told what is being done.

    Parameters
    ----------
    compare : Path, optional
        The CSV file of a comparison with peers.
    again : Path, optional
        The data set of a second sweep of the same space.
    n : int, optional
        The order of which every kernel is shown.
    trees : int
        Of the forest.
    wanted
        The dtype, protocol, family and batch that the report is about; by default the data's commonest.

    Raises
    ------
    BatchcholError
        If a package is missing, a file cannot be read or written, or nothing in the data is as asked for.
    """
    data = load(path, say)
    case = choose(data.correct, **wanted)
    rows = of_case(data.correct, case)
    if n is not None and n not in set(rows["n"]):
        raise BatchcholError(f"--n: got {n}, and the data have {pivots.orders(sorted(rows['n'].unique()))}")
    compared = None if compare is None else speedups.read(compare, case.dtype, case.batch)
    stable = None if again is None else _again(again, case, rows, say)
    # All families, own code measured again included: what a user would choose from.
    problem = alike(data.correct, case, "dtype", "protocol", "batch")
    others = problem.query("~again")
    one = "fast" if "fast" in set(rows["math"]) else "ieee"
    grown = _grown(data.correct, case, trees, say)
    say("table I by the study's measure")
    found = tuple(study_2017.findings(rows, one, grown, compared, others))
    say("figures")
    material = Material(case, rows, others, one, grown, compared, stable, found, n)
    drawn = list(figure_list.every(material, folder))
    # The study's parameters are those of the thread family.
    measured = rows[rows["math"] == one] if case.family == "thread" else rows[:0]
    report = Report(
        **vars(material),
        page=folder / PAGE,
        statuses=data.statuses,
        best=pivots.fastest(problem, ["n", "math"]),
        own_code=_own_code(problem),
        drawings=tuple(each for each in drawn if isinstance(each, Drawing)),
        missing=tuple(each for each in drawn if isinstance(each, str)),
        provenance=_provenance(data.correct),
        table_one=table_one.table(measured, trees),
    )
    _write(report, path)
    return report


def _grown(points: Any, case: Case, trees: int, say: Callable[[str], None]) -> importance.Forest | str:
    """The forest of the points that are alike in dtype, protocol and family, or why there is none."""
    similar = alike(points, case, "dtype", "protocol", "family").query("~again")
    validated = ", cross-validated by n" if similar["n"].nunique() > 1 else ""
    say(f"{len(similar):,} points for the forest of {trees} trees{validated}")
    return importance.grow(similar, trees)


def _again(path: Path, case: Case, rows: Any, say: Callable[[str], None]) -> Stability:
    """Whether a second sweep makes the same choices."""
    try:
        second = of_case(load(path, say).correct, case)
        return stability.compare(rows, second)
    except BatchcholError as error:
        raise BatchcholError(f"--again: {error}") from error


def _own_code(rows: Any) -> str:
    """What their own code gains or costs finalists, in a sentence; empty where there are none."""
    own = pivots.own_code(rows)
    if own.empty:
        return ""
    low, high = own.loc[own["ratio"].idxmin()], own.loc[own["ratio"].idxmax()]
    return (
        f"{len(own):,} finalists that had run code for blocks of any size were measured again with their specs' own: "
        f"that is {own['ratio'].median():.0%} as fast in the median, {low['ratio']:.0%} at the least "
        f"(n = {low['n']:.0f}) and {high['ratio']:.0%} at the most (n = {high['n']:.0f})."
    )


def _provenance(rows: Any) -> dict[str, str]:
    """What the rows say of machine and software, and the days when they were measured."""
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
        loader=PackageLoader("batchchol.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"inline": _inline, "marked": _marked, "behind": _behind, "fraction": fraction_text}
    page = environment.get_template("report.html.jinja").render(
        report=report,
        source=source.name,
        conclusions=wording,
        importance=importance,
        stability=stability,
        no_forest=isinstance(report.forest, str),
    )
    make_folder(report.page.parent)
    replace_file(report.page, page.encode())


def _marked(text: str) -> Any:
    """What is between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))


def _behind(share: float) -> str:
    """By how much, if it was measured."""
    return "not measured" if math.isnan(share) else f"{share:.1%}"


def _inline(drawing: Drawing, folder: Path) -> str:
    drawn = (folder / f"{drawing.name}.svg").read_bytes()
    return "data:image/svg+xml;base64," + base64.b64encode(drawn).decode()
