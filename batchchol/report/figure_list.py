"""Every figure of a report in the study's order, each with what it shows; or why it is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchchol.report import course_rule, figures, pivots, stability
from batchchol.report.data import Case
from batchchol.report.figures import Gain
from batchchol.report.importance import Forest
from batchchol.report.speedups import Speedups
from batchchol.report.stability import Stability
from batchchol.report.statements import Finding, gain_of
from batchchol.report.style import BLUE, ORANGE, save
from batchchol.report.wording import NOISE
from batchchol.tune.search import features
from kernelgen.schedules.axes import LOOKINGS, UNROLLS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCATTER_ORDER = 32
"""The order of which every kernel is shown, if there are points of it."""

_STUDY_ORDERS, _STUDY_CHUNK = (24, 48), 64
"""Of the study's figure 20: each nb in three lookings, two layouts and two unrollings."""

# Number in the study, column, what it is.
_LEVELS = (
    (15, "nb", "tile size"),
    (16, "looking", "order of evaluation"),
    (17, "layout", "layout: with and without chunks"),
    (18, "chunk", "chunk size"),
    (19, "unroll", "unrolling"),
)
_COURSE = (("layout", "layout"), ("looking", "order of evaluation"), ("nb", "tile size"), ("chunk", "chunk size"))
_ORDERS: Mapping[str, Sequence[str]] = {
    "looking": LOOKINGS,
    "unroll": UNROLLS,
    "layout": ("chunked", "interleaved", "canonical"),
}
_INTEGERS = ("nb", "chunk")
_FAMILIES = ("thread", "shared")


@dataclass(frozen=True)
class Drawing:
    """A figure of a report.

    Attributes
    ----------
    label : str
        "Figure 15" where its model in the study has that number; else a label of its own.
    name : str
        Of its files.
    title, caption, message : str
        What is drawn, how, and what it shows.
    paint : callable
        Draws it.
    """

    label: str
    name: str
    title: str
    caption: str
    message: str
    paint: Callable[[], Figure]


@dataclass(frozen=True)
class Material:
    """What there is to draw.

    Attributes
    ----------
    case : Case
    rows : pandas.DataFrame
        The points of the case.
    similar : pandas.DataFrame
        Those and the points of other families, with the case's dtype, protocol and batch.
    math : str
        The accuracy class that figures 15 to 20 are of.
    forest : Forest or str
    speedups : Speedups or None
    stability : Stability or None
    findings : sequence of Finding
    n : int or None
        The order of which every kernel is shown.
    """

    case: Case
    rows: Any
    similar: Any
    math: str
    forest: Forest | str
    speedups: Speedups | None
    stability: Stability | None
    findings: Sequence[Finding]
    n: int | None

    @property
    def about(self) -> str:
        """What the points of the case have in common."""
        case, n = self.case, _only(self.rows)
        problem = f"{case.dtype}{n}, batch {case.batch:,}"
        return f"Family {case.family}, {problem}, {case.protocol} calls, cold data, medians."

    @property
    def one(self) -> Any:
        """The points of one accuracy class."""
        return self.rows[self.rows["math"] == self.math]

    def message(self, label: str) -> str:
        """What the finding about a figure says in a few words; empty where there is none."""
        return next((finding.short for finding in self.findings if finding.label == label), "")


def _only(rows: Any) -> str:
    """Their only order in words, after a comma; empty if there are several."""
    return f", {pivots.orders(rows['n'].unique())}" if rows["n"].nunique() == 1 else ""


def every(material: Material, folder: Path) -> Iterator[Drawing | str]:
    """The figures in their order, drawn to `folder`; a sentence in place of each that cannot be drawn."""
    for figure in FIGURES:
        for drawing in figure(material):
            if isinstance(drawing, Drawing):
                save(drawing.paint, folder / drawing.name)
            yield drawing


def _maths(material: Material) -> Iterator[Drawing]:
    label = "Figure 13"
    table, roofline = pivots.by(material.rows, "math"), material.rows.groupby("n")["roofline_gflops"].max()
    shares = gain_of(material.rows, "math", "fast", "ieee")
    paint = partial(figures.maths, table, roofline, Gain(shares, "what fast math gains", NOISE))
    title = "Best performance for each n"
    yield Drawing(label, "figure-13-best", title, material.about, material.message(label), paint)


def _peers(material: Material) -> Iterator[Drawing | str]:
    label, compared = "Figure 14", material.speedups
    if compared is None:
        yield f"{label}, speedup over peers: no comparison was given (`--compare FILE`)."
        return
    caption = f"Same run, same protocol, each in its own layout: {compared.note}."
    caption += f" Absent: {', '.join(compared.absent)}." if compared.absent else ""
    paint = partial(figures.speedups, compared.tables)
    yield Drawing(label, "figure-14-peers", "Speedup over peers", caption, material.message(label), paint)


def _levels(material: Material) -> Iterator[Drawing | str]:
    for number, column, words in _LEVELS:
        label, table = f"Figure {number}", _table(material.one, column)
        if len(table.columns) < 2:
            yield f"{label}, {words}: the data have no two values of `{column}`."
            continue
        caption = f"{material.about} The best of all other parameters, {material.math} math."
        if column == "chunk" and features.tied(material.one):
            caption += " A block of threads works on one chunk, so that this is its size as well."
        paint = partial(figures.levels, table, column, _gain(material.one, table, column))
        title = f"Best performance for each {words}"
        yield Drawing(label, f"figure-{number}-{column}", title, caption, material.message(label), paint)


def _gain(rows: Any, table: Any, column: str) -> Gain | None:
    """Of the columns that have two values, what the one gains over the other, as the conclusions have it."""
    if column == "unroll":
        shares = gain_of(rows, column, "full", "tiles")
        return Gain(shares, "what straight-line code gains", NOISE, (ORANGE, BLUE))
    if column == "layout" and set(table.columns) == {"chunked", "interleaved"}:
        return Gain(pivots.ratio(table, "chunked", "interleaved") - 1, "what chunks gain", NOISE)
    return None


def _table(rows: Any, column: str) -> Any:
    """The best of each value, as figures have them: whole numbers, or words in their order."""
    known = rows[rows[column].notna()]
    table = pivots.by(known.astype({column: "Int64"}) if column in _INTEGERS else known, column)
    if column in _ORDERS:
        table = table[sorted(table.columns, key=_ORDERS[column].index)]
    table.columns = [int(value) if column in _INTEGERS else value for value in table.columns]
    return table


def _scatter(material: Material) -> Iterator[Drawing | str]:
    label, one = "Figure 20", material.one
    known = one.assign(unroll=one["unroll"].fillna("tiles"))
    known = known[known["nb"].notna() & known["looking"].notna()]
    if known.empty:
        yield f"{label}, every kernel of one n: the points have no nb and looking."
        return
    orders = known["n"].value_counts()
    n = material.n or (SCATTER_ORDER if SCATTER_ORDER in orders.index else int(orders.index[0]))
    rows = known[known["n"] == n]
    if rows.empty:
        yield f"{label}, every kernel at n = {n}: no point with {material.math} math has a looking."
        return
    caption = f"{material.about} {material.math} math, {len(rows):,} points."
    yield _scattered("figure-20-every-kernel", f"Every kernel at n = {n}", caption, rows)
    for order in _STUDY_ORDERS:
        kernels = _study_kernels(known[known["n"] == order])
        if len(kernels) > 1:
            most = kernels.groupby("nb").size().max()
            caption = f"{material.about} {material.math} math, chunks of {_STUDY_CHUNK} and no chunks, each kernel "
            caption += f"with the better of blocks and memory preferences: {most} of the study's 12 for each nb."
            yield _scattered(f"figure-20-n{order}", f"The study's kernels at n = {order}", caption, kernels)


def _scattered(name: str, title: str, caption: str, rows: Any) -> Drawing:
    span = rows["gflops"].max() / rows["gflops"].min()
    message = f"Between the worst choice and the best lies a factor of {span:,.0f}."
    return Drawing("Figure 20", name, title, caption, message, partial(figures.every_kernel, rows))


def _study_kernels(rows: Any) -> Any:
    """Of each nb, looking, layout and unrolling the fastest, of chunks of the study's size and without chunks."""
    alike = rows[(rows["layout"] == "interleaved") | (rows["chunk"] == _STUDY_CHUNK)]
    return pivots.fastest(alike, ["nb", "looking", "layout", "unroll"])


def _forest(material: Material) -> Iterator[Drawing | str]:
    label, grown = "Figure 21", material.forest
    if isinstance(grown, str):
        yield f"{label}, predicted against observed: {grown}"
        return
    unseen = grown.orders_held_out
    caption = "Left a random fifth of the points, right all points, each by a forest that knew no point of its order."
    caption = "A random fifth of the points." if unseen is None else caption
    message = f"The forest explains {grown.points_held_out.r2:.0%} of the variance of points it had not seen"
    message += "." if unseen is None else f", {unseen.r2:.0%} where it had seen no point of that order."
    title = "Predicted against observed performance"
    yield Drawing(label, "figure-21-forest", title, caption, message, partial(figures.predictions, grown))


def _course(material: Material) -> Iterator[Drawing]:
    """The four plots of the later course study and its rule, where both of its families were measured."""
    similar = material.similar[material.similar["math"] == material.math]
    if not set(_FAMILIES) <= set(similar["family"]):
        return
    for number, (column, words) in enumerate(_COURSE, start=1):
        alike = _comparable(similar, column)
        tables = {family: _table(alike[alike["family"] == family], column) for family in _FAMILIES}
        if min(len(table.columns) for table in tables.values()) < 2:
            continue
        yield Drawing(
            f"Course study, plot {number}",
            f"course-{number}-{column}",
            f"Best performance for each {words}, by family",
            f"Both families on one scale. The best of all other parameters, {material.math} math, batch "
            f"{material.case.batch:,}{_only(similar)}.",
            _overtaking(tables),
            partial(figures.by_family, tables, column),
        )
    shares = course_rule.rule_shares(similar)
    if shares.size:
        yield Drawing(
            "Course study, rule",
            "course-rule",
            "Chunk by tile size",
            f"Family shared, {material.math} math, batch {material.case.batch:,}{_only(similar) or ', mean over n'}. "
            "Each chunk with the best of the other parameters, of kernels that differ in nothing but their chunk. "
            f"Left of the line: chunk · nb² ≤ {course_rule.BLOCK_THREADS:,}.",
            course_rule.BLOCK_RULE.against(similar).short,
            partial(figures.rule, shares, course_rule.BLOCK_THREADS),
        )


def _comparable(rows: Any, column: str) -> Any:
    """The points whose other choices were measured with as many values of a parameter as any were."""
    for other in ("nb", "looking", "layout"):
        if other != column:
            counts = rows.groupby(other)[column].nunique()
            rows = rows[rows[other].isin(counts.index[counts == counts.max()])]
    return rows


def _overtaking(tables: Mapping[str, Any]) -> str:
    """Where the shared family is faster than the thread family."""
    both = pivots.ratio({name: table.max(axis=1) for name, table in tables.items()}, "shared", "thread")
    if len(both) == 1:
        return f"The shared family's best has {both.iloc[0]:.0%} of the GFLOP/s of the thread family's."
    return f"The shared family is the faster at {pivots.orders(both.index[both > 1], both.index)}."


def _stability(material: Material) -> Iterator[Drawing]:
    if (compared := material.stability) is None:
        return
    agreeing = int(compared.table["agrees"].sum())
    yield Drawing(
        "Two sweeps",
        "two-sweeps",
        "Do two sweeps choose the same kernels?",
        "Left: each sweep's winner, measured by the other. Right: the times of all points, but the outermost 1%.",
        f"{agreeing} of {len(compared.table)} sizes have the same winner, or winners within {stability.BOUND:.0%}.",
        partial(figures.stability, compared.table, compared.ratios, stability.BOUND),
    )


FIGURES: Sequence[Callable[[Material], Iterator[Drawing | str]]] = (
    _maths,
    _peers,
    _levels,
    _scatter,
    _forest,
    _course,
    _stability,
)
"""What a report may show, in its order: each yields its figures, or why there is none."""
