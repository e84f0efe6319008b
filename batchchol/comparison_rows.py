"""What a comparison says: rows, as a CSV file and as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from batchchol.cache import replace_file
from batchchol.errors import DataFileError
from batchchol.roofline import flops


@dataclass(frozen=True)
class Row:
    """One contender at one point, its result checked.

    `seconds` is the median of `samples` calls for the whole batch, `spread` their interquartile range over the
    median, `floor_seconds` what handing an empty batch to the threads takes, `roofline_seconds` what the batch
    takes at least (see `roofline`), `ratio` the largest residual ratio seen, `times_numpy` NumPy's median over this
    one (NaN if NumPy was not timed). `date`, `machine`, `commit` and `version` say where the number comes from.
    """

    contender: str
    spec: str
    n: int
    batch: int
    dtype: str
    threads: int
    protocol: str
    samples: int
    seconds: float
    spread: float
    floor_seconds: float
    roofline_seconds: float
    ratio: float
    times_numpy: float
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


_DERIVED = ("ns_per_matrix", "gflops", "roofline_fraction", "roofline_gflops")
# Of each field, from the text that a CSV file keeps.
_READ = {field.name: {"int": int, "float": float, "str": str}[str(field.type)] for field in fields(Row)}
_DIGITS = 6


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write rows, with the quantities derived from them, to a file that appears whole or not at all.

    Raises
    ------
    DataFileError
        If it cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = (*_READ, *_DERIVED)
    writer.writerow(columns)
    for row in rows:
        values = (getattr(row, column) for column in columns)
        writer.writerow(f"{value:.{_DIGITS}g}" if isinstance(value, float) else value for value in values)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.getvalue().encode())
    except OSError as error:
        raise DataFileError(path, "writing", error.strerror or str(error)) from error


def read_csv(path: Path) -> list[Row]:
    """The rows of a file that `write_csv` wrote; none if there is no such file.

    Raises
    ------
    DataFileError
        If it is something else; names the line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return [_parse(path, line, values) for line, values in enumerate(csv.DictReader(stream), start=2)]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataFileError(path, "reading", str(error)) from error


def _parse(path: Path, line: int, values: dict[str, str]) -> Row:
    try:
        if missing := [name for name, value in values.items() if value is None]:
            raise ValueError(f"no {missing[0]}")
        return Row(**{name: read(values[name]) for name, read in _READ.items()})
    except (KeyError, ValueError, TypeError) as error:
        reason = f"not a row of a comparison ({error!r}): choose another file, or remove this one"
        raise DataFileError(path, f"line {line}", reason) from error


_HEADINGS = ("n", "threads", "contender", "ns/matrix", "GFLOP/s", "roofline", "× NumPy", "spread", "residual", "spec")
_LEFT = ("contender", "spec")


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table that also reads well as plain text; ends with a newline."""
    lines = [_HEADINGS, *(_cells(row) for row in rows)]
    columns = [_column(heading in _LEFT, cells) for heading, *cells in zip(_HEADINGS, *lines, strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*columns, strict=True))


def _column(left: bool, cells: Sequence[str]) -> list[str]:
    """Heading and cells at one width, with the rule that Markdown aligns them by."""
    width = max(map(len, cells))
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
        f"{row.roofline_fraction:.0%}",
        f"{row.times_numpy:.1f}",
        f"{row.spread:.0%}",
        f"{row.ratio:.3f}",
        row.spec,
    )
