"""Tables of measured defaults: which schedule, and which layout, is the best for which case; one an architecture.

They are data: JSON with an entry a line, so that a change of one shows as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from math import log2
from typing import Any, Protocol, TypeVar

from kernelgen import FAMILIES, Layout, Schedule, ThreadSchedule


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

    def __str__(self) -> str:
        where = f"chunks of {self.chunk}" if self.chunk else f"{self.layout} in {self.order} order"
        return f"{self.dtype}, {self.math}, {self.layout if not (self.chunk or self.order) else where}"


@dataclass(frozen=True)
class Entry:
    """The schedule to use up to order `n`, for batches nearer to `batch` than to those beside it; None: for all."""

    n: int
    batch: int | None
    schedule: Schedule


@dataclass(frozen=True)
class Placement:
    """The layout to use up to order `n`; `batch` as for `Entry`."""

    dtype: str
    n: int
    batch: int | None
    layout: Layout


@dataclass(frozen=True)
class Table:
    """What was measured on one architecture: a GPU's, such as "sm_90", or for a CPU the name of the target.

    `cases` has the entries of each case in ascending order of (n, batch), `layouts` the best layout of a batch that
    nobody chose one for, `arrays` that of canonical arrays, copies between layouts included. `measured` says for each
    dtype where and when.
    """

    name: str
    target: str
    cases: Mapping[Case, tuple[Entry, ...]]
    layouts: tuple[Placement, ...] = ()
    arrays: tuple[Placement, ...] = ()
    measured: Mapping[str, str] = field(default_factory=dict)

    def updated(self, other: Table) -> Table:
        """The table with all that another one of the same architecture says of its dtypes in place of its own."""
        fresh = {case.dtype for case in other.cases}
        cases = {case: entries for case, entries in self.cases.items() if case.dtype not in fresh}
        return Table(
            self.name,
            other.target,
            cases | dict(other.cases),
            (*(each for each in self.layouts if each.dtype not in fresh), *other.layouts),
            (*(each for each in self.arrays if each.dtype not in fresh), *other.arrays),
            dict(self.measured) | dict(other.measured),
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
    """The entry of a row whose batch is nearest by ratio."""
    return min(row, key=lambda entry: abs(log2(max(batch, 1) / entry.batch)) if entry.batch else 0.0)


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
            f"   {json.dumps(_said(asdict(case)))[:-1]}, "
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
        cases[case] = tuple(_entry(entry, case.math) for entry in described["entries"])
    layouts, arrays = (tuple(_placement(each) for each in values.get(key, ())) for key in ("layouts", "arrays"))
    return Table(name, values["target"], cases, layouts, arrays, values["measured"])


def _entry(values: Mapping[str, Any], math: str) -> Entry:
    chosen = {"family": ThreadSchedule.family, **values}
    n, batch, family = chosen.pop("n"), chosen.pop("batch", None), chosen.pop("family")
    return Entry(n, batch, FAMILIES[family](math=math, **chosen))


def _entry_values(entry: Entry) -> dict[str, Any]:
    schedule = {key: value for key, value in asdict(entry.schedule).items() if key != "math"}
    return _said({"n": entry.n, "batch": entry.batch, "family": entry.schedule.family, **schedule})


def _placement(values: Mapping[str, Any]) -> Placement:
    chosen = dict(values)
    dtype, n, batch = chosen.pop("dtype"), chosen.pop("n"), chosen.pop("batch", None)
    return Placement(dtype, n, batch, Layout(chosen.pop("layout"), **chosen))


def _placement_values(each: Placement) -> dict[str, Any]:
    layout = each.layout
    where = {"layout": layout.kind, "chunk": layout.chunk, "order": layout.order if layout.order == "row" else None}
    return _said({"dtype": each.dtype, "n": each.n, "batch": each.batch, **where})


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _lines(values: Sequence[Mapping[str, Any]], depth: int) -> str:
    indent = " " * depth
    return "[\n" + ",\n".join(f"{indent} {json.dumps(each)}" for each in values) + f"\n{indent}]"
