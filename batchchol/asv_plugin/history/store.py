"""All that the suite ever measured, in one SQLite file beside asv's results.

asv keeps the last result of a point and commit. The store keeps each run's, so that nights without a new commit tell
how much equal code differs. It is filled from asv's files: what it has already is left alone.
"""

from __future__ import annotations

import datetime
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from batchchol.asv_plugin.results import ResultRow
from batchchol.errors import DataFileError, optional
from batchchol.files import make_folder

if TYPE_CHECKING:
    import pandas as pd

_VERSION = 1
_POINT = "machine, environment, commit_hash, benchmark, params"
_COLUMNS = f"{_POINT}, commit_date, started, status, median, unit, samples, about"
_SCHEMA = f"""
CREATE TABLE measurement (
    machine TEXT NOT NULL, environment TEXT NOT NULL, commit_hash TEXT NOT NULL, benchmark TEXT NOT NULL,
    params TEXT NOT NULL, commit_date TEXT NOT NULL, started TEXT NOT NULL, status TEXT NOT NULL, median REAL,
    unit TEXT NOT NULL, samples TEXT NOT NULL, about TEXT NOT NULL,
    PRIMARY KEY ({_POINT}, started)
) WITHOUT ROWID;
PRAGMA user_version = {_VERSION};
"""
_OF_DEVICE = ("gpu", "cpu", "driver", "toolkit", "compiler")
# Another process may be adding a night's results.
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Measurement:
    """One point of one benchmark at one commit in one run.

    `date` is the commit's, `started` the run's, both in UTC. `status` is "measured" or "failed"; `median` and
    `samples` are in `unit`, NaN and () of a failure. `about` is what was recorded of a kernel (its `spec`,
    `source_sha256`, `protocol`, `device`, `conditions`), {} of other benchmarks.
    """

    machine: str
    environment: str
    commit: str
    benchmark: str
    params: Mapping[str, Any]
    date: datetime.datetime
    started: datetime.datetime
    status: str
    median: float
    unit: str
    samples: tuple[float, ...]
    about: Mapping[str, Any]


class Store:
    """A store that is open; see :func:`opened`."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self._database = path, database

    def add(self, rows: Iterable[ResultRow]) -> int:
        """Add the results that are new, all or none, and return their number; skipped points are no results."""
        lines = [_line(row) for row in rows if row.status != "skipped"]
        before = self._database.total_changes
        with _explained(self.path), self._database:
            marks = ", ".join("?" * (_COLUMNS.count(",") + 1))
            self._database.executemany(f"INSERT OR IGNORE INTO measurement ({_COLUMNS}) VALUES ({marks})", lines)
        return self._database.total_changes - before

    def measurements(self, machine: str | None = None) -> list[Measurement]:
        """All of a machine, or of every machine, in the order of commits and runs."""
        order = "machine, environment, commit_date, commit_hash, benchmark, params, started"
        where, values = ("WHERE machine = ?", (machine,)) if machine else ("", ())
        with _explained(self.path):
            found = self._database.execute(f"SELECT {_COLUMNS} FROM measurement {where} ORDER BY {order}", values)
            return [_measurement(line) for line in found]

    def frame(self, machine: str | None = None) -> pd.DataFrame:
        """The measurements as a pandas DataFrame; each parameter is a column, named "param_n" of `n`.

        Raises
        ------
        BatchcholError
            If pandas is missing.
        """
        pandas = optional("pandas", "a table of the history", "history")
        lines = [
            {
                "machine": each.machine,
                "environment": each.environment,
                "commit": each.commit,
                "date": each.date,
                "started": each.started,
                "benchmark": each.benchmark,
                **{f"param_{name}": value for name, value in each.params.items()},
                "status": each.status,
                "median": each.median,
                "unit": each.unit,
                "samples": list(each.samples),
                "spec": each.about.get("spec", ""),
                "source_sha256": each.about.get("source_sha256", ""),
            }
            for each in self.measurements(machine)
        ]
        return pandas.DataFrame(lines)

    def thin(self, before: datetime.datetime) -> tuple[int, int]:
        """Forget samples of runs that started before a time, and all but the last of a point's runs before it.

        Medians of the last run of every point and commit stay for ever: histories keep all of their commits.

        Returns
        -------
        runs, samples : int
            Runs that were removed, and those whose samples were.
        """
        key = f"{_POINT}, started"
        newest = f"SELECT {_POINT}, max(started) FROM measurement WHERE started < ?1 GROUP BY {_POINT}"
        with _explained(self.path), self._database:
            runs = self._database.execute(
                f"DELETE FROM measurement WHERE started < ?1 AND ({key}) NOT IN ({newest})", (before.isoformat(),)
            ).rowcount
            samples = self._database.execute(
                "UPDATE measurement SET samples = '[]' WHERE started < ?1 AND samples <> '[]'", (before.isoformat(),)
            ).rowcount
        with _explained(self.path):
            self._database.execute("VACUUM")
        return runs, samples


@contextmanager
def opened(path: Path | str) -> Iterator[Store]:
    """Open the store, which is made where it is missing.

    Raises
    ------
    DataFileError
        If it cannot be made or read, or a newer batchchol wrote it.
    """
    path = Path(path)
    make_folder(path.parent)
    with _explained(path):
        database = sqlite3.connect(path, timeout=_PATIENCE_SECONDS)
    try:
        with _explained(path), database:
            database.execute("BEGIN IMMEDIATE")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if not version:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    database.execute(statement)
        if version > _VERSION:
            raise DataFileError(
                path, "whole file", f"a newer batchchol wrote it (format {version}): update batchchol"
            )
        yield Store(path, database)
    finally:
        database.close()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ones that name the file."""
    try:
        yield
    except sqlite3.Error as error:
        reason = f"{error}: if it is damaged, move it away and fill a new one from asv's results"
        raise DataFileError(path, "whole file", reason) from error


def _line(row: ResultRow) -> tuple[Any, ...]:
    """A result in the order of the columns."""
    samples = [sample for record in row.records for sample in record.samples] or list(row.samples)
    return (
        row.machine,
        row.environment,
        row.commit,
        row.benchmark,
        json.dumps(dict(row.params), sort_keys=True),
        row.date.isoformat(),
        row.started.isoformat(),
        row.status,
        None if math.isnan(row.median) else row.median,
        row.unit,
        json.dumps(samples),
        json.dumps(_kept(row.records[-1].about) if row.records else {}),
    )


def _kept(about: Mapping[str, Any]) -> dict[str, Any]:
    """What was recorded of a kernel, and of its device what can change from one night to the next."""
    device = about.get("device", {})
    return {**about, "device": {name: device[name] for name in _OF_DEVICE if name in device}}


def _measurement(line: tuple[Any, ...]) -> Measurement:
    machine, environment, commit, benchmark, params, date, started, status, median, unit, samples, about = line
    return Measurement(
        machine,
        environment,
        commit,
        benchmark,
        MappingProxyType(json.loads(params)),
        datetime.datetime.fromisoformat(date),
        datetime.datetime.fromisoformat(started),
        status,
        math.nan if median is None else median,
        unit,
        tuple(json.loads(samples)),
        MappingProxyType(json.loads(about)),
    )
