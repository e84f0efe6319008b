"""Tables of measured defaults: the best schedule and layout of each case; a table an architecture.

They are data: JSON with an entry a line, so that a change of one shows as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby, pairwise
from math import inf, log2, sqrt
from typing import Any, Protocol, TypeVar

from kernelgen import FAMILIES, Layout, Schedule, ThreadSchedule
from kernelgen.schedules.axes import axes_of

# An entry of general matrices serves orders of which its own is at most this multiple.
REACH_OF_ORDERS = 1.25


@dataclass(frozen=True)
class Case:
    """What entries have in common: those without a chunk are for any chunk.

    `order` is that of canonical arrays alone: of their lower triangle, and so the other one of their upper triangle.
    """

    dtype: str
    math: str
    layout: str
    chunk: int | None = None
    order: str | None = None
    op: str = "potrf"

    def __str__(self) -> str:
        where = f"chunks of {self.chunk}" if self.chunk else f"{self.layout} in {self.order} order"
        return f"{self.dtype}, {self.math}, {self.layout if not (self.chunk or self.order) else where}"


@dataclass(frozen=True)
class Evidence:
    """What a schedule took, and the next best: nanoseconds of a matrix in a batch of `batch`.

    `math` and `chunk` are those of the measurement where they are not the case's.
    """

    batch: int
    ns: float
    runner_up: Schedule | None = None
    runner_up_ns: float | None = None
    math: str | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class Entry:
    """The schedule to use up to order `n`, for batches near `batch`; None: for all.

    Near are those up to `until`, where that of the next batch becomes the faster one; if that is None, those that
    are nearer to `batch` by ratio. Two entries are equal if they choose the same, whatever `evidence` they have.
    """

    n: int
    batch: int | None
    schedule: Schedule
    until: int | None = field(default=None, compare=False)
    evidence: tuple[Evidence, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Placement:
    """The layout to use up to order `n`; `batch` as for `Entry`. `math`: for this one alone, where it has its own."""

    dtype: str
    n: int
    batch: int | None
    layout: Layout
    math: str | None = None


@dataclass(frozen=True)
class Table:
    """What was measured on one architecture: a GPU's, such as "sm_90", or for a CPU the name of the target.

    `cases` has the entries of each case in ascending order of (n, batch), `layouts` the default layout
    of batches, `arrays` that of canonical arrays, copies between layouts included. `measured` says for each
    dtype where and when.
    """

    name: str
    target: str
    cases: Mapping[Case, tuple[Entry, ...]]
    layouts: tuple[Placement, ...] = ()
    arrays: tuple[Placement, ...] = ()
    measured: Mapping[str, str] = field(default_factory=dict)

    def updated(self, other: Table) -> Table:
        """The table, with its entries of another table's operations and dtypes replaced by that table's.

        Where a factorization by Cholesky is not among them, layouts stay, and what is said of where it was measured.
        """
        fresh = {(case.op, case.dtype) for case in other.cases}
        cases = {case: entries for case, entries in self.cases.items() if (case.op, case.dtype) not in fresh}
        placed = {dtype for op, dtype in fresh if op == "potrf"}
        said = {dtype: where for dtype, where in self.measured.items() if dtype not in placed}
        return Table(
            self.name,
            other.target,
            cases | dict(other.cases),
            (*(each for each in self.layouts if each.dtype not in placed), *other.layouts),
            (*(each for each in self.arrays if each.dtype not in placed), *other.arrays),
            dict(other.measured) | said,
        )


class _Sized(Protocol):
    @property
    def batch(self) -> int | None: ...


_Any = TypeVar("_Any", Entry, Placement)
_Row = TypeVar("_Row", bound=_Sized)


def rows(entries: Iterable[_Any], n: int) -> Iterator[tuple[_Any, ...]]:
    """The entries of each order, the best for order n first: the next larger one's, then the nearest by ratio."""
    by_order = {order: tuple(row) for order, row in groupby(entries, lambda entry: entry.n)}
    serving = min((order for order in by_order if order >= n), default=None)
    for order in sorted(by_order, key=lambda order: (order != serving, abs(log2(order / max(n, 1))))):
        yield by_order[order]


def nearest(row: Sequence[_Row], batch: int) -> _Row:
    """The entry of a row that serves a batch: the nearest by ratio if no `until` decides."""
    ascending = sorted(row, key=lambda entry: entry.batch or 0)
    for entry, following in pairwise(ascending):
        if batch <= _until(entry, following):
            return entry
    return ascending[-1]


def _until(entry: _Sized, following: _Sized) -> float:
    known: int | None = getattr(entry, "until", None)
    if known is not None:
        return known
    return sqrt(entry.batch * following.batch) if entry.batch and following.batch else inf


def parse(text: str) -> dict[str, Table]:
    """The tables of a file by their names.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it is something else.
    """
    return {name: _table(name, values) for name, values in json.loads(text)["tables"].items()}


def render(tables: Iterable[Table]) -> str:
    """The text that `parse` reads."""
    parts = []
    for table in tables:
        head = {"target": table.target, "measured": dict(table.measured)}
        fields = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        for name in ("layouts", "arrays"):
            if lines := [_placement_values(each) for each in getattr(table, name)]:
                fields.append(f'  "{name}": {_lines(lines, 2)}')
        cases = [
            f"   {json.dumps(_case_values(case))[:-1]}, "
            f'"entries": {_lines([_entry_values(entry) for entry in entries], 3)}}}'
            for case, entries in table.cases.items()
        ]
        fields.append('  "cases": [\n' + ",\n".join(cases) + "\n  ]")
        parts.append(f" {json.dumps(table.name)}: {{\n" + ",\n".join(fields) + "\n }")
    return '{"tables": {\n' + ",\n".join(parts) + "\n}}\n"


def _table(name: str, values: Mapping[str, Any]) -> Table:
    cases = {}
    for described in values["cases"]:
        common = {key: value for key, value in described.items() if key != "entries"}
        case = Case(**common)
        cases[case] = tuple(_entry(entry) for entry in described["entries"])
    layouts, arrays = (tuple(_placement(each) for each in values.get(key, ())) for key in ("layouts", "arrays"))
    return Table(name, values["target"], cases, layouts, arrays, values["measured"])


def _entry(values: Mapping[str, Any]) -> Entry:
    chosen = dict(values)
    n, batch, until = chosen.pop("n"), chosen.pop("batch", None), chosen.pop("until", None)
    measured = chosen.pop("measured", ())
    schedule = schedule_of(chosen)
    return Entry(n, batch, schedule, until, tuple(_evidence(each, batch, schedule) for each in measured))


def _entry_values(entry: Entry) -> dict[str, Any]:
    chosen = without_none({"n": entry.n, "batch": entry.batch, "until": entry.until}) | values_of(entry.schedule)
    measured = [_evidence_values(each, entry) for each in entry.evidence]
    return chosen | ({"measured": measured} if measured else {})


def schedule_of(values: Mapping[str, Any]) -> Schedule:
    """The schedule that `values_of` describes.

    Raises
    ------
    SpecError, KeyError, TypeError
        If there is no such schedule, such as in a version of before it.
    """
    chosen = {"family": ThreadSchedule.family, **values}
    return FAMILIES[chosen.pop("family")](**chosen)


def values_of(schedule: Schedule) -> dict[str, Any]:
    """The family and the choices of a schedule; what it leaves to the target is left out, as are zeros by default."""
    none = {each.name for each in fields(schedule) if each.default == 0}
    choices = {name: getattr(schedule, name) for name in axes_of(type(schedule))}
    return without_none({"family": schedule.family} | {k: v for k, v in choices.items() if v != 0 or k not in none})


def _evidence(values: Mapping[str, Any], batch: int | None, schedule: Schedule) -> Evidence:
    said = dict(values)
    if other := said.pop("next", None):
        same = other.get("family") in (None, schedule.family)
        said["runner_up"] = replace(schedule, **other) if same else schedule_of(other)
        said["runner_up_ns"] = said.pop("next_ns")
    return Evidence(**{"batch": batch, **said})


def _evidence_values(each: Evidence, entry: Entry) -> dict[str, Any]:
    values: dict[str, Any] = {"batch": None if each.batch == entry.batch else each.batch, "ns": each.ns}
    if each.runner_up is not None:
        values |= {"next_ns": each.runner_up_ns, "next": _unlike(each.runner_up, entry.schedule)}
    return without_none(values | {"math": each.math, "chunk": each.chunk})


def _unlike(schedule: Schedule, chosen: Schedule) -> dict[str, Any]:
    """How a schedule differs from the chosen one, or from its family's defaults."""
    same = type(schedule) is type(chosen)
    usual = {each.name: getattr(chosen, each.name) if same else each.default for each in fields(schedule)}
    named = {name: getattr(schedule, name) for name in axes_of(type(schedule))}
    return ({} if same else {"family": schedule.family}) | {k: v for k, v in named.items() if v != usual[k]}


def _case_values(case: Case) -> dict[str, Any]:
    """A case as a table has it; the oldest operation is not named."""
    return without_none(asdict(case) | {"op": None if case.op == "potrf" else case.op})


def _placement(values: Mapping[str, Any]) -> Placement:
    chosen = dict(values)
    dtype, n, batch = chosen.pop("dtype"), chosen.pop("n"), chosen.pop("batch", None)
    math = chosen.pop("math", None)
    return Placement(dtype, n, batch, Layout(chosen.pop("layout"), **chosen), math)


def _placement_values(each: Placement) -> dict[str, Any]:
    layout = each.layout
    where = {"layout": layout.kind, "chunk": layout.chunk, "order": layout.order if layout.order == "row" else None}
    return without_none({"dtype": each.dtype, "math": each.math, "n": each.n, "batch": each.batch, **where})


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None."""
    return {key: value for key, value in values.items() if value is not None}


def _lines(values: Sequence[Mapping[str, Any]], depth: int) -> str:
    indent = " " * depth
    return "[\n" + ",\n".join(f"{indent} {json.dumps(each)}" for each in values) + f"\n{indent}]"
