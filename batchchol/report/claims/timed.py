"""Rows of files that are no comparisons: what was timed, by whatever columns a file has (datasets/README.md)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchchol.errors import DataFileError
from batchchol.files import for_reading
from batchchol.measure import parquet

_WORDS = {"True": True, "False": False}
_LONG = ["definition", "sample_seconds", "message"]


@dataclass(frozen=True)
class TimedRow:
    """A row whose columns are its attributes; `n`, `batch`, `seconds` and `commit` are among them.

    Texts that are numbers, True or False are read as such.
    """

    columns: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        columns = self.__dict__.get("columns", {})
        if name not in columns:
            raise AttributeError(f"{name}: got the columns {', '.join(columns)}")
        return columns[name]

    @property
    def case(self) -> tuple[object, ...]:
        """What was measured, apart from the kernel."""
        return tuple(self.columns.get(name) for name in ("op", "n", "nrhs", "batch"))


def has_contenders(path: Path) -> bool:
    """Whether a file is a comparison's.

    Raises
    ------
    DataFileError
        If it cannot be read.
    """
    return "contender" in (_lines(path)[:1] or [[]])[0]


def read_timed(path: Path) -> list[TimedRow]:
    """The rows of a file.

    Raises
    ------
    DataFileError
        If it cannot be read, or has no n, batch or time; names the line.
    """
    return [_timed(path, line, row) for line, row in enumerate(read_columns(path), start=2)]


def read_columns(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV or Parquet file by column; texts that are numbers, True or False are read as such.

    Raises
    ------
    DataFileError
        If it cannot be read.
    """
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = parquet.read(path).drop_columns(_LONG).to_pylist()
        return rows
    head, *lines = _lines(path) or [[]]
    return [_parsed(dict(zip(head, values, strict=False))) for values in lines]


def _lines(path: Path) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", newline="", opener=for_reading) as stream:
            return list(csv.reader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataFileError(path, "reading", str(error)) from error


def _parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    # A commit of digits alone is no number.
    return {name: text if name == "commit" else _value(text) for name, text in texts.items()}


def _timed(path: Path, line: int, row: Mapping[str, Any]) -> TimedRow:
    columns = {**row, "seconds": row["microseconds"] / 1e6} if "microseconds" in row else row
    if missing := [name for name in ("n", "batch", "seconds", "commit") if name not in columns]:
        raise DataFileError(path, f"line {line}", f"no {missing[0]}: choose another file")
    return TimedRow(columns)


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text
