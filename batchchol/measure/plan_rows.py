"""What was measured of ways to factor larger matrices, as a CSV file: one line a plan, its choices as columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchchol.errors import DataFileError
from batchchol.files import append_whole, for_reading
from batchchol.operations.residual import RATIO_BOUND

CHOICES = (
    *("kind", "nb", "ib", "lb", "rows", "threads", "row_threads", "resident", "update", "depth", "blocks"),
    *("looking", "ahead", "columns", "width", "warps", "border"),
)
"""Of plans, see `batchchol.algorithms.plans.values_of`; a plan lacks some of them."""

_WORDS = ("kind", "update", "looking")
_MEASURED = ("seconds", "spread", "samples", "ratio", "protocol", "message")
_MACHINE = ("gpu", "driver", "toolkit", "version", "commit", "date")
COLUMNS = ("dtype", "n", "batch", *CHOICES, *_MEASURED, *_MACHINE)


@dataclass(frozen=True)
class PlanRow:
    """A plan on `batch` matrices of order n: median seconds of a call, or a message if it could not be measured."""

    dtype: str
    n: int
    batch: int
    plan: Mapping[str, str | int]
    seconds: float = 0.0
    spread: float = 0.0
    samples: int = 0
    ratio: float = 0.0
    protocol: str = ""
    message: str = ""
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def gflops(self) -> float:
        """GFLOP/s, of n^3 / 3 flops for each matrix."""
        return self.batch * self.n**3 / 3 / self.seconds / 1e9

    @property
    def name(self) -> str:
        """The choices in a few words."""
        return words(self.plan)


def words(plan: Mapping[str, str | int]) -> str:
    """The choices of a plan in a few words."""
    return ", ".join(f"{name}={plan[name]}" for name in CHOICES if name in plan)


def append(path: Path, rows: Iterable[PlanRow]) -> None:
    """Add rows to a file, with a header if it is new.

    Raises
    ------
    DataFileError
        If the file has other columns, or cannot be written.
    """
    try:
        new = not path.exists() or not path.stat().st_size
        if not new and not is_of_plans(path):
            raise DataFileError(path, "line 1", "has other columns than plans: choose another file")
        added = io.StringIO()
        writer = csv.DictWriter(added, COLUMNS, lineterminator="\n", extrasaction="ignore")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow(_values(row))
        append_whole(path, added.getvalue().encode())
    except OSError as error:
        raise DataFileError(path, "writing", error.strerror or str(error)) from error


def is_of_plans(path: Path) -> bool:
    """Whether a file is one that `append` wrote."""
    try:
        with open(path, newline="", encoding="utf-8", opener=for_reading) as stream:
            return tuple(next(csv.reader(stream), ())) == COLUMNS
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def read(path: Path) -> list[PlanRow]:
    """The rows of a file.

    Raises
    ------
    DataFileError
        If it cannot be read, or is something else.
    """
    try:
        with open(path, newline="", encoding="utf-8", opener=for_reading) as stream:
            return [_row(values) for values in csv.DictReader(stream)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise DataFileError(path, "reading", f"not a file of plans of larger matrices ({error!r})") from error


def correct(rows: Iterable[PlanRow]) -> list[PlanRow]:
    """The rows that were measured, and whose residual ratio keeps the promise of `ieee`."""
    return [row for row in rows if row.seconds and row.ratio <= RATIO_BOUND["ieee"]]


def _values(row: PlanRow) -> dict[str, Any]:
    numbers = {"seconds": f"{row.seconds:.6g}", "spread": f"{row.spread:.3g}", "ratio": f"{row.ratio:.3g}"}
    measured = numbers if row.seconds else dict.fromkeys(numbers, "")
    named = {name: getattr(row, name) for name in ("dtype", "n", "batch", "samples", "protocol", "message")}
    return {**row.about, **named, **row.plan, **measured}


def _row(values: Mapping[str, str]) -> PlanRow:
    plan = {name: values[name] if name in _WORDS else int(values[name]) for name in CHOICES if values[name]}
    return PlanRow(
        values["dtype"],
        int(values["n"]),
        int(values["batch"]),
        plan,
        float(values["seconds"] or 0),
        float(values["spread"] or 0),
        int(values["samples"]),
        float(values["ratio"] or 0),
        values["protocol"],
        values["message"],
        {name: values[name] for name in _MACHINE},
    )
