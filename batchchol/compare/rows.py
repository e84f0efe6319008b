"""What a comparison says: rows, as a CSV file and as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from batchchol.errors import DataFileError
from batchchol.files import for_reading, make_folder, replace_file
from batchchol.operations.roofline import flops, fraction_text


@dataclass(frozen=True)
class Measurement:
    """One contender at one point, its result checked.

    `seconds` is the median of `samples` samples for the whole batch, `spread` their interquartile range over the
    median, `floor_seconds` what a call with nothing to do takes, `roofline_seconds` what the batch takes at least
    (see `roofline`), `ratio` the largest residual ratio seen. `date`, `machine`, `commit` and `version` say where the
    number comes from.
    """

    contender: str
    spec: str
    n: int
    batch: int
    dtype: str
    protocol: str
    samples: int
    seconds: float
    spread: float
    floor_seconds: float
    roofline_seconds: float
    ratio: float
    date: str
    machine: str
    commit: str
    version: str

    @property
    def ns_per_matrix(self) -> float:
        return self.seconds / self.batch * 1e9

    @property
    def gflops(self) -> float:
        return flops(self.n) * self.batch / self.seconds / 1e9

    @property
    def roofline_fraction(self) -> float:
        return self.roofline_seconds / self.seconds

    @property
    def roofline_gflops(self) -> float:
        return flops(self.n) * self.batch / self.roofline_seconds / 1e9


@dataclass(frozen=True)
class Row(Measurement):
    """A measurement on a CPU, with that many threads; `times_numpy` is NumPy's median over this one.

    That is NaN if NumPy was not timed. The floor is what handing an empty batch to the threads takes.
    """

    threads: int
    times_numpy: float


@dataclass(frozen=True)
class DeviceRow(Measurement):
    """A measurement on a GPU.

    `size` is how the batch was asked for, `math` the accuracy class that the result was held to, `layout` where the
    matrices lay, `calls` how many made a sample, `timing` how and on which stream. Clocks, temperature and throttling
    are those after the last sample; 0 and "" where the driver does not say.
    """

    size: str
    math: str
    layout: str
    calls: int
    timing: str
    copy_bytes_per_second: float
    gpu: str
    driver: str
    toolkit: str
    gpu_clock_mhz: float
    temperature_c: float
    throttle: str


AnyRow = TypeVar("AnyRow", bound=Measurement)
_DERIVED = ("ns_per_matrix", "gflops", "roofline_fraction", "roofline_gflops")
_DIGITS = 6


def _readers(kind: type[Measurement]) -> dict[str, Callable[[str], Any]]:
    """Of each field, what makes it of the text that a CSV file keeps."""
    return {field.name: {"int": int, "float": float, "str": str}[str(field.type)] for field in fields(kind)}


def write_csv(path: Path, rows: Sequence[Measurement], kind: type[Measurement] = Row) -> None:
    """Write rows of a kind, with the quantities derived from them, to a file that appears whole or not at all.

    Raises
    ------
    DataFileError
        If it cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = (*_readers(kind), *_DERIVED)
    writer.writerow(columns)
    for row in rows:
        values = (getattr(row, column) for column in columns)
        writer.writerow(f"{value:.{_DIGITS}g}" if isinstance(value, float) else value for value in values)
    make_folder(path.parent)
    replace_file(path, text.getvalue().encode())


def read_csv(path: Path) -> list[Row]:
    """The rows of a file of measurements on a CPU: see `read_rows`."""
    return read_rows(path, Row)


def read_rows(path: Path, kind: type[AnyRow]) -> list[AnyRow]:
    """The rows of a file that `write_csv` wrote; none if there is no such file.

    Raises
    ------
    DataFileError
        If it is something else; names the line.
    """
    try:
        with open(path, encoding="utf-8", newline="", opener=for_reading) as stream:
            return [_parse(path, line, values, kind) for line, values in enumerate(csv.DictReader(stream), start=2)]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataFileError(path, "reading", str(error)) from error


def _parse(path: Path, line: int, values: dict[str, str], kind: type[AnyRow]) -> AnyRow:
    try:
        if missing := [name for name, value in values.items() if value is None]:
            raise ValueError(f"no {missing[0]}")
        return kind(**{name: read(values[name]) for name, read in _readers(kind).items()})
    except (KeyError, ValueError, TypeError) as error:
        reason = f"not a row of a comparison ({error!r}): choose another file, or remove this one"
        raise DataFileError(path, f"line {line}", reason) from error


_CPU_HEADINGS = (
    "n",
    "threads",
    "contender",
    "ns/matrix",
    "GFLOP/s",
    "roofline",
    "× NumPy",
    "spread",
    "residual",
    "spec",
)
_GPU_HEADINGS = (
    "n",
    "batch",
    "contender",
    "protocol",
    "µs/call",
    "GFLOP/s",
    "roofline",
    "spread",
    "samples",
    "residual",
    "spec",
)
_LEFT = ("contender", "protocol", "library", "spec", "version", "date")


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table that also reads well as plain text; ends with a newline."""
    return markdown(_CPU_HEADINGS, [_cells(row) for row in rows])


def device_table(rows: Sequence[DeviceRow]) -> str:
    """As `table`, of measurements on a GPU."""
    return markdown(_GPU_HEADINGS, [_device_cells(row) for row in rows])


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table, aligned."""
    columns = [_column(heading in _LEFT, cells) for heading, *cells in zip(headings, headings, *lines, strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*columns, strict=True))


def _column(left: bool, cells: Sequence[str]) -> list[str]:
    """Heading and cells at one width, with the rule that Markdown aligns them by."""
    width = max(2, *map(len, cells))
    rule = ":" + "-" * (width - 1) if left else "-" * (width - 1) + ":"
    heading, *rest = (cell.ljust(width) if left else cell.rjust(width) for cell in cells)
    return [heading, rule, *rest]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.n),
        str(row.threads),
        row.contender,
        f"{row.ns_per_matrix:,.1f}",
        f"{row.gflops:.2f}",
        fraction_text(row.roofline_fraction),
        "" if math.isnan(row.times_numpy) else f"{row.times_numpy:.1f}",
        f"{row.spread:.0%}",
        f"{row.ratio:.3f}",
        row.spec,
    )


def _device_cells(row: DeviceRow) -> tuple[str, ...]:
    return (
        str(row.n),
        f"{row.batch:,}",
        row.contender,
        row.protocol,
        f"{row.seconds * 1e6:,.2f}",
        f"{row.gflops:,.1f}",
        fraction_text(row.roofline_fraction),
        f"{row.spread:.1%}",
        f"{row.samples} × {row.calls}",
        f"{row.ratio:.3f}",
        row.spec,
    )
