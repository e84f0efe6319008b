"""Rows as a CSV file, which `tune --out` appends to: one line a point, columns of text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchchol.errors import DataFileError
from batchchol.files import append_whole, for_reading
from batchchol.measure.row import COLUMNS, Row, choice_columns, column_of
from kernelgen import FAMILIES, KernelSpec, Problem, ThreadSchedule
from kernelgen.schedules.axes import axes_of

_DIGITS = 5
_WRITTEN = (
    *("spec", "n", "dtype", "uplo", "op", "target", "layout", "order", "chunk", "family", *choice_columns()),
    *("batch", "threads", "protocol", "status", "median_seconds", "spread", "ratio", "samples", "floor_seconds"),
    *("compile_seconds", "code_bytes", "registers", "spill_bytes", "shared_bytes", "source", "flags"),
    *("gpu_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttle"),
    *("copy_bytes_per_second", "peak_flops_per_second"),
)
# A CPU's file lacks the columns that only a GPU has.
_MACHINE = ("gpu", "driver", "toolkit", "cpu", "compiler", "version", "commit", "date")
# The columns that a file of any version has, and the values that older ones took for granted.
_NEEDED = (
    *("n", "dtype", "target", "layout", "math", "batch", "threads", "status", "median_seconds", "spread", "ratio"),
    *("samples", "gpu or cpu", "toolkit or compiler", "date"),
)
_FORMER = {
    "family": ThreadSchedule.family, "op": "potrf", "uplo": "lower", "order": "col", "protocol": "single",
    "chunk": None, "any_block": False,
}  # fmt: skip


def append(path: Path, rows: Sequence[Row], about: Mapping[str, str]) -> None:
    """Add rows to a file, with a header if it is new; a file is not made for none.

    Parameters
    ----------
    about : mapping
        The columns of the machine, the software and the day, see `provenance.about`.

    Raises
    ------
    DataFileError
        If the file has other columns, or cannot be written.
    """
    if not rows:
        return
    columns = [*_WRITTEN, *(name for name in _MACHINE if name in about)]
    try:
        old = path.exists() and path.stat().st_size > 0
        if old:
            with open(path, newline="", encoding="utf-8", opener=for_reading) as stream:
                found = next(csv.reader(stream), [])
            if sorted(found) != sorted(columns):
                raise DataFileError(path, "line 1", "has the columns of another version: choose another file")
            columns = found
        added = io.StringIO()
        writer = csv.DictWriter(added, columns, extrasaction="ignore", lineterminator="\n")
        if not old:
            writer.writeheader()
        for row in rows:
            writer.writerow({name: _text(value) for name, value in {**row.values(), **about}.items()})
        append_whole(path, added.getvalue().encode())
    except OSError as error:
        raise DataFileError(path, "writing", error.strerror or str(error)) from error


def check_appendable(path: Path) -> None:
    """Refuse a file to which :func:`append` could not add, before anything is measured for it.

    Raises
    ------
    DataFileError
        If it cannot be written, or is something else than a file.
    """
    try:
        new = not path.exists()
        if not (new or path.is_file() or path.is_char_device()):
            raise DataFileError(path, "writing", "is not a file: name another one")
        path.open("a").close()
        if new:
            path.unlink()
    except OSError as error:
        raise DataFileError(path, "writing", error.strerror or str(error)) from error


def read(path: Path) -> Iterator[Row]:
    """The correct rows of a file of any version.

    Raises
    ------
    DataFileError
        If it cannot be read or is something else; names the line, or the columns that it lacks.
    """
    try:
        with open(path, newline="", encoding="utf-8", opener=for_reading) as stream:
            reader = csv.DictReader(stream)
            columns = set(reader.fieldnames or ())
            if missing := [names for names in _NEEDED if columns.isdisjoint(names.split(" or "))]:
                reason = f"not a file of `tune`, columns are missing ({', '.join(missing)}): choose another one"
                raise DataFileError(path, "line 1", reason)
            for line, texts in enumerate(reader, start=2):
                if texts["status"] == "correct":
                    yield _row(path, line, texts)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataFileError(path, "reading", getattr(error, "strerror", None) or str(error)) from error


def _row(path: Path, line: int, texts: Mapping[str, str]) -> Row:
    try:
        values = _FORMER | {name: _value(name, text) for name, text in texts.items() if text}
        return Row.of(values | {"device": values.get("gpu") or values["cpu"]}, _spec(values))
    except (KeyError, ValueError, TypeError) as error:
        reason = f"not a row of a tuning run ({error!r}): choose another file"
        raise DataFileError(path, f"line {line}", reason) from error


def _spec(values: Mapping[str, Any]) -> KernelSpec:
    """The kernel of a line, which has no column `definition`."""
    family = FAMILIES[values["family"]]
    chosen = {name: values[column] for name in axes_of(family) if (column := column_of(name)) in values}
    problem = Problem(values["n"], values["dtype"], values["uplo"], values["op"], values["math"])
    return KernelSpec(problem, values["layout"], values["order"], family(**chosen), values["target"])


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)


def _value(name: str, text: str) -> Any:
    """A column of a line as its type has it."""
    dtype = COLUMNS[name].dtype if name in COLUMNS else "string"
    if dtype == "bool":
        return text == "True"
    return int(text) if dtype.startswith("int") else float(text) if dtype.startswith("float") else text
