"""What a comparison says: rows, as a CSV file and as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from batchchol.errors import DataFileError
from batchchol.files import for_reading, make_folder, replace_file
from batchchol.operations.roofline import flops, fraction_text
from kernelgen.operations import OPERATIONS, POTRF


def _only(default: Any, **where: Any) -> Any:
    """A column that other files do not have: of a `place` "cpu" or "cuda", of `solves`, or of `energy`."""
    return field(default=default, metadata=where)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender at one point, its result checked.

    `seconds` is the median of `samples` samples for the whole batch, `spread` their interquartile range over the
    median, `floor_seconds` what a call with nothing to do takes, `roofline_seconds` what the batch takes at least
    (see `roofline`), `ratio` the largest residual ratio seen. `date`, `machine`, `commit` and `version` say where the
    number comes from.

    On a CPU: `threads` are those of the measurement, and `times_numpy` is NumPy's median over this one, NaN if NumPy
    was not timed. The floor is what handing an empty batch to the threads takes.

    On a GPU: `size` is how the batch was asked for, `math` the accuracy class that the result was held to, `layout`
    where the matrices lay, `calls` how many made a sample, `timing` how and on which stream. Clocks, temperature and
    throttling are those after the last sample; 0 and "" where the driver does not say.

    `joules` is what a call used while it was repeated for seconds, all of the device, by its counter, whose steps are
    the `joules_uncertainty`; `watts` the power meanwhile, and `idle_watts` that of the device with nothing to do. NaN
    if not measured.

    `op` is the operation, and `nrhs` how many right-hand sides each matrix has, where there are any.
    """

    contender: str
    spec: str
    op: str = _only("potrf", solves=True)
    n: int
    nrhs: int = _only(1, solves=True)
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
    threads: int = _only(1, place="cpu")
    times_numpy: float = _only(math.nan, place="cpu")
    joules: float = _only(math.nan, energy=True)
    joules_uncertainty: float = _only(math.nan, energy=True)
    watts: float = _only(math.nan, energy=True)
    idle_watts: float = _only(math.nan, energy=True)
    size: str = _only("", place="cuda")
    math: str = _only("ieee", place="cuda")
    layout: str = _only("", place="cuda")
    calls: int = _only(1, place="cuda")
    timing: str = _only("", place="cuda")
    copy_bytes_per_second: float = _only(0.0, place="cuda")
    gpu: str = _only("", place="cuda")
    driver: str = _only("", place="cuda")
    toolkit: str = _only("", place="cuda")
    gpu_clock_mhz: float = _only(0.0, place="cuda")
    temperature_c: float = _only(0.0, place="cuda")
    throttle: str = _only("", place="cuda")

    @property
    def on_gpu(self) -> bool:
        return bool(self.gpu)

    @property
    def solves(self) -> bool:
        """Whether there are right-hand sides."""
        return OPERATIONS[self.op].has_columns

    @property
    def factors(self) -> bool:
        """Whether matrices are factored, and nothing else."""
        return self.op == POTRF.name

    @property
    def subject(self) -> str:
        """What a plot's title calls it."""
        if self.solves:
            return f"Batched {self.op}, nrhs = {self.nrhs}"
        return "Batched Cholesky" if self.factors else f"Batched {self.op}"

    @property
    def stem(self) -> str:
        """What the names of a plot's files say of it."""
        return f"-{self.op}-nrhs{self.nrhs}" if self.solves else f"-{self.op}" * (not self.factors)

    @property
    def ns_per_matrix(self) -> float:
        return self.seconds / self.batch * 1e9

    @property
    def gflops(self) -> float:
        return flops(self.n, self.nrhs, self.op) * self.batch / self.seconds / 1e9

    @property
    def roofline_fraction(self) -> float:
        return self.roofline_seconds / self.seconds

    @property
    def roofline_gflops(self) -> float:
        return flops(self.n, self.nrhs, self.op) * self.batch / self.roofline_seconds / 1e9

    @property
    def case(self) -> tuple[object, ...]:
        """What was measured, apart from the contender."""
        return self.op, self.n, self.nrhs, self.batch, self.dtype

    @property
    def point(self) -> tuple[object, ...]:
        """What was measured and where: of several rows of one point, the last counts."""
        return self.contender, *self.case, self.protocol, self.machine, self.threads


_DERIVED = ("ns_per_matrix", "gflops", "roofline_fraction", "roofline_gflops")
_DIGITS = 6


def columns(on_gpu: bool, solves: bool = False, energy: bool = False) -> dict[str, Callable[[str], Any]]:
    """The columns of a file of measurements on a GPU or on a CPU, each with the function that reads its text.

    Only files of other operations than potrf have those of the operation, and only those of `energy` joules.
    """
    place, read = ("cuda" if on_gpu else "cpu"), {"int": int, "float": float, "str": str}
    return {
        each.name: read[str(each.type)]
        for each in fields(Row)
        if each.metadata.get("place", place) == place
        and each.metadata.get("solves", solves) == solves
        and each.metadata.get("energy", energy) == energy
    }


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows, with the quantities derived from them, to a file that appears whole or not at all.

    Raises
    ------
    DataFileError
        If it cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    energy = any(not math.isnan(row.joules) for row in rows)
    names = (*columns(any(row.on_gpu for row in rows), not all(row.factors for row in rows), energy), *_DERIVED)
    writer.writerow(names)
    for row in rows:
        values = (getattr(row, name) for name in names)
        writer.writerow(f"{value:.{_DIGITS}g}" if isinstance(value, float) else value for value in values)
    make_folder(path.parent)
    replace_file(path, text.getvalue().encode())


def read_rows(path: Path) -> list[Row]:
    """The rows of a file that `write_csv` wrote; none if there is no such file.

    Raises
    ------
    DataFileError
        If it is something else; names the line.
    """
    try:
        with open(path, encoding="utf-8", newline="", opener=for_reading) as stream:
            return [_parse(path, line, values) for line, values in enumerate(csv.DictReader(stream), start=2)]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataFileError(path, "reading", getattr(error, "strerror", None) or str(error)) from error


def _parse(path: Path, line: int, values: dict[str, str]) -> Row:
    try:
        if missing := [name for name, value in values.items() if value is None]:
            raise ValueError(f"no {missing[0]}")
        known = columns("gpu" in values, "op" in values, "joules" in values)
        return Row(**{name: read(values[name]) for name, read in known.items()})
    except (KeyError, ValueError, TypeError) as error:
        reason = f"not a row of a comparison ({error!r}): choose another file, or remove this one"
        raise DataFileError(path, f"line {line}", reason) from error


_CELLS: dict[str, Callable[[Row], str]] = {
    "op": lambda row: row.op,
    "n": lambda row: str(row.n),
    "nrhs": lambda row: str(row.nrhs),
    "batch": lambda row: f"{row.batch:,}",
    "threads": lambda row: str(row.threads),
    "contender": lambda row: row.contender,
    "protocol": lambda row: row.protocol,
    "ns/matrix": lambda row: f"{row.ns_per_matrix:,.1f}",
    "µs/call": lambda row: f"{row.seconds * 1e6:,.2f}",
    "GFLOP/s": lambda row: f"{row.gflops:,.1f}" if row.on_gpu else f"{row.gflops:.2f}",
    "roofline": lambda row: fraction_text(row.roofline_fraction),
    "× NumPy": lambda row: "" if math.isnan(row.times_numpy) else f"{row.times_numpy:.1f}",
    "µJ/matrix": lambda row: f"{row.joules / row.batch * 1e6:,.4g} ± {row.joules_uncertainty / row.joules:.0%}",
    "W": lambda row: f"{row.watts:,.0f}",
    "spread": lambda row: f"{row.spread:.1%}" if row.on_gpu else f"{row.spread:.0%}",
    "samples": lambda row: f"{row.samples} × {row.calls}",
    "residual": lambda row: f"{row.ratio:.3f}",
    "spec": lambda row: row.spec,
}
# fmt: off
_CPU_HEADINGS = (
    "n", "threads", "contender", "ns/matrix", "GFLOP/s", "roofline", "× NumPy", "spread", "residual", "spec",
)
_GPU_HEADINGS = (
    "n", "batch", "contender", "protocol", "µs/call", "GFLOP/s", "roofline", "spread", "samples", "residual", "spec",
)
# fmt: on
_SOLVE_HEADINGS = ("op", "nrhs")
_ENERGY_HEADINGS = ("µJ/matrix", "W")
_LEFT = ("op", "contender", "protocol", "library", "spec", "version", "date")


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table that also reads well as plain text; ends with a newline."""
    headings = _CPU_HEADINGS if rows and not rows[0].on_gpu else _GPU_HEADINGS
    headings = headings if all(row.factors for row in rows) else (*_SOLVE_HEADINGS, *headings)
    if any(not math.isnan(row.joules) for row in rows):
        headings = (*headings[:-1], *_ENERGY_HEADINGS, headings[-1])
    return markdown(headings, [[_CELLS[heading](row) for heading in headings] for row in rows])


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]], left: Collection[str] = _LEFT) -> str:
    """A Markdown table, aligned: the columns named in `left` to the left."""
    columns = [_column(heading in left, cells) for heading, *cells in zip(headings, headings, *lines, strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*columns, strict=True))


def _column(left: bool, cells: Sequence[str]) -> list[str]:
    """Heading and cells at one width, with the rule that Markdown aligns them by."""
    width = max(2, *map(len, cells))
    rule = ":" + "-" * (width - 1) if left else "-" * (width - 1) + ":"
    heading, *rest = (cell.ljust(width) if left else cell.rjust(width) for cell in cells)
    return [heading, rule, *rest]
