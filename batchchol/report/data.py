"""The points of a data set as a table of pandas, and those that a report is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from batchchol.errors import BatchcholError, DataFileError, optional
from batchchol.measure import dataset
from batchchol.measure.row import STATUSES
from batchchol.operations.roofline import compulsory_bytes, flops
from kernelgen import Layout

# They are long, and nothing here reads them.
_LEFT_OUT = ("definition", "sample_seconds", "flags", "message")
SPEC_COLUMNS = dataset.KEY_COLUMNS[:-1]
"""What tells points apart, whichever code they ran: the spec's own, or one for blocks of any size."""


@cache
def require() -> tuple[ModuleType, ModuleType]:
    """Return pandas and scikit-learn.

    Raises
    ------
    BatchcholError
        If one of them, matplotlib or pyarrow is not installed; names the extra that has them.
    """
    packages = ("pandas", "sklearn", "matplotlib", "pyarrow")
    pandas, sklearn, *_ = [optional(package, "a report on a data set", "report") for package in packages]
    return pandas, sklearn


@dataclass(frozen=True)
class Data:
    """A data set.

    Attributes
    ----------
    correct : pandas.DataFrame
        The rows that have a number, with columns added: `gflops` (n³/3 flops a matrix), `roofline_gflops` (what the
        machine would allow) and `again` (whether a finalist's own code was measured once more).
    statuses : mapping of str to int
        All rows, counted by status.
    """

    correct: Any
    statuses: Mapping[str, int]


@dataclass(frozen=True)
class Case:
    """What the figures are about, since numbers of different cases do not compare."""

    dtype: str
    protocol: str
    family: str
    batch: int


def load(path: Path, warn: dataset.Warn = lambda _: None) -> Data:
    """Read a data set, a folder or a Parquet file; `warn` is told what is damaged in a folder, or no potrf: left out.

    Raises
    ------
    DataFileError
        If it cannot be read, is of another version of the schema, or has no correct point of potrf.
    BatchcholError
        If a package is missing.
    """
    pandas, _ = require()
    table = dataset.read(path, warn)
    every = table.drop_columns([name for name in _LEFT_OUT if name in table.column_names]).to_pandas()
    rows = every[every["op"] == "potrf"]
    if others := ", ".join(sorted({*every["op"]} - {"potrf"})):
        warn(f"{path}: points of {others} are left out: a report explains Cholesky factorizations")
    counts = rows["status"].value_counts()
    statuses = {status: int(counts.get(status, 0)) for status in STATUSES}
    correct = rows[(rows["status"] == "correct") & (rows["median_seconds"] > 0)].copy()
    if correct.empty:
        advice = "sweep again, its column `message` says what was wrong" if len(rows) else f"all are of {others}"
        raise DataFileError(path, "rows", f"no point of a Cholesky factorization is correct: {advice}")
    correct["gflops"] = correct["n"].map(flops) * correct["batch"] / correct["median_seconds"] / 1e9
    correct["roofline_gflops"] = _roofline(correct)
    correct["again"] = _again(pandas, correct)
    return Data(correct.reset_index(drop=True), statuses)


def choose(correct: Any, **wanted: Any) -> Case:
    """The case that most points belong to, among those with the values that are `wanted` (None: any).

    Of the families "thread" comes first, the study's; of the batches the one with the most orders.

    Raises
    ------
    BatchcholError
        If there are none with a wanted value; says which values there are.
    """
    rows, chosen = correct, {}
    for name in ("dtype", "protocol", "family", "batch"):
        value = wanted.get(name)
        if value is None:
            value = _commonest(rows, name)
        elif value not in set(rows[name]):
            there = ", ".join(f"{each:,}" if name == "batch" else str(each) for each in sorted(rows[name].unique()))
            raise BatchcholError(f"--{name}: got {value!r}, which no correct point has; there are {there}")
        chosen[name] = value
        rows = rows[rows[name] == value]
    return Case(chosen["dtype"], chosen["protocol"], chosen["family"], int(chosen["batch"]))


def of_case(correct: Any, case: Case) -> Any:
    """The points of a case, without the second measurements of finalists: what can be compared with one another."""
    return alike(correct, case, "dtype", "protocol", "family", "batch").query("~again")


def alike(rows: Any, case: Case, *columns: str) -> Any:
    """The points that agree with the case in these columns."""
    return rows[(rows[list(columns)] == [getattr(case, name) for name in columns]).all(axis=1)]


def _commonest(rows: Any, name: str) -> Any:
    if name == "family" and "thread" in set(rows[name]):
        return "thread"
    if name == "batch":
        orders = rows.groupby("batch").agg(orders=("n", "nunique"), points=("n", "size")).reset_index()
        return orders.sort_values(["orders", "points", "batch"])["batch"].iloc[-1]
    return rows[name].value_counts().index[0]


def _roofline(rows: Any) -> Any:
    """GFLOP/s that memory or arithmetic would allow, by the ceilings that the sweep measured; NaN without them."""
    columns = ["n", "layout", "order", "dtype"]
    kinds = rows[columns].drop_duplicates()
    kinds["bytes"] = [
        compulsory_bytes(int(n), Layout(layout, 32 if layout == "chunked" else None, order), dtype)
        for n, layout, order, dtype in kinds.itertuples(index=False)
    ]
    matrix = rows[columns].merge(kinds, on=columns, how="left")["bytes"].to_numpy()
    # Each process of a sweep measured them: the best is the ceiling, the others shared the machine with other work.
    alike = rows.groupby(["device", "threads", "dtype"], dropna=False)
    by_memory = alike["copy_bytes_per_second"].transform("max").to_numpy() / matrix
    by_memory *= rows["n"].map(flops).to_numpy() / 1e9
    peak = alike["peak_flops_per_second"].transform("max").to_numpy() / 1e9
    return np.fmin(by_memory, peak)


def _again(pandas: Any, rows: Any) -> Any:
    """Which rows are of own code, where code for blocks of any size was measured too."""
    any_block = rows["any_block"].fillna(False).astype(bool)
    keys = pandas.MultiIndex.from_frame(rows[list(SPEC_COLUMNS)].astype({"chunk": "Float64"}).fillna(0))
    return ~any_block.to_numpy() & keys.isin(keys[any_block.to_numpy()])
