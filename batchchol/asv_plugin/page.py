"""The results of the suite over commits as one page that loads nothing from anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchchol.asv_plugin.results import ResultRow
from batchchol.errors import BatchcholError
from batchchol.files import make_folder, replace_file
from batchchol.tune.winners import grouped

# The size of a point's small chart.
WIDTH, HEIGHT = 120, 24
# Slower or faster by more is coloured; the gate decides what it means.
NOTABLE = 0.1
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps"))


@dataclass(frozen=True)
class Commit:
    """A column of the history: a measured commit."""

    name: str
    date: str


@dataclass(frozen=True)
class Series:
    """A point over the commits, the oldest first; NaN where it was not measured, or failed."""

    label: str
    medians: tuple[float, ...]
    unit: str
    failed: bool

    @property
    def measured(self) -> list[float]:
        return [median for median in self.medians if not math.isnan(median)]

    @property
    def change(self) -> float:
        """The newest number's difference from the one before it, as a share of that; NaN if there is only one."""
        known = self.measured
        return known[-1] / known[-2] - 1 if len(known) > 1 and known[-2] else math.nan

    @property
    def tone(self) -> str:
        """How the change is coloured."""
        if not abs(self.change) > NOTABLE:
            return ""
        return "bad" if self.change > 0 else "good"

    @property
    def line(self) -> str:
        """The points of the chart's line, from zero up."""
        top, step = max(self.measured, default=1.0) or 1.0, WIDTH / max(1, len(self.medians) - 1)
        places = ((index * step, median) for index, median in enumerate(self.medians) if not math.isnan(median))
        return " ".join(f"{x:.1f},{HEIGHT * (1 - median / top):.1f}" for x, median in places)

    @property
    def end(self) -> list[str]:
        """Where the line ends; empty if there is none."""
        return self.line.rpartition(" ")[2].split(",") if self.line else []

    @property
    def newest(self) -> str:
        """The last number, in a unit that suits it."""
        return shown(self.measured[-1], self.unit) if self.measured else ""


@dataclass(frozen=True)
class Table:
    """A benchmark, and what all of its points have in common."""

    benchmark: str
    fixed: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Machine:
    """All that was measured on a machine in an environment."""

    name: str
    commits: tuple[Commit, ...]
    tables: tuple[Table, ...]


def write(rows: Iterable[ResultRow], path: Path) -> list[Machine]:
    """Write the page of some results, and return what is on it.

    Raises
    ------
    BatchcholError
        If no point was measured, or the file cannot be written.
    """
    from jinja2 import Environment, PackageLoader

    shown_rows = [row for row in rows if row.status != "skipped"]
    found = [
        _machine(name, of)
        for name, of in sorted(grouped(shown_rows, lambda row: f"{row.machine}, {row.environment}").items())
    ]
    if not found:
        raise BatchcholError("no point of the suite was measured: run `python -m batchchol suite` first")
    environment = Environment(loader=PackageLoader("batchchol.asv_plugin"), autoescape=True, trim_blocks=True)
    template = environment.get_template("page.html.jinja")
    text = template.render(machines=found, width=WIDTH, height=HEIGHT, isnan=math.isnan)
    make_folder(path.parent)
    replace_file(path, text.encode())
    return found


def shown(value: float, unit: str) -> str:
    """A number of a benchmark for people."""
    if unit != "seconds":
        return f"{value:,.4g} {unit}"
    size, name = next((each for each in _UNITS if abs(value) >= each[0]), _UNITS[-1])
    return f"{value / size:.3g} {name}"


def _machine(name: str, rows: Sequence[ResultRow]) -> Machine:
    dates = {row.commit: row.date for row in rows}
    commits = sorted(dates, key=lambda commit: (dates[commit], commit))
    tables = (
        _table(benchmark, of, commits) for benchmark, of in sorted(grouped(rows, lambda row: row.benchmark).items())
    )
    return Machine(name, tuple(Commit(each[:8], f"{dates[each]:%Y-%m-%d}") for each in commits), tuple(tables))


def _table(benchmark: str, rows: Sequence[ResultRow], commits: Sequence[str]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row.params))
    varied = [name for name in names if len({repr(row.params.get(name)) for row in rows}) > 1]
    fixed = {name: rows[0].params.get(name) for name in names if name not in varied}
    points = grouped(rows, lambda row: _said({name: row.params.get(name) for name in varied}))
    return Table(benchmark, _said(fixed), tuple(_series(points, commits)))


def _said(params: Mapping[str, Any]) -> str:
    """Parameters for people; None is a default."""
    return ", ".join(f"{name} = {value}" for name, value in params.items() if value is not None)


def _series(points: Mapping[str, Sequence[ResultRow]], commits: Sequence[str]) -> Iterator[Series]:
    for label, rows in points.items():
        medians = {row.commit: row.median for row in rows}
        newest = max(rows, key=lambda row: commits.index(row.commit))
        in_order = tuple(medians.get(commit, math.nan) for commit in commits)
        yield Series(label, in_order, newest.unit, newest.status == "failed")
