"""Measured points of a tuning run as rows of a CSV file, each with its provenance."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from batchchol.errors import DataFileError
from batchchol.files import for_reading
from batchchol.measure.provenance import source_hash
from batchchol.measure.row import column_of
from batchchol.operations.roofline import Ceilings, flops, roofline_seconds
from batchchol.tune.tuning import Point, Points
from kernelgen import FAMILIES, KernelSpec, Layout, Problem, ThreadSchedule, generate
from kernelgen.axes import axes_of

_DIGITS = 5


def row(point: Point, ceilings: Ceilings, about: Mapping[str, str]) -> dict[str, object]:
    """A point as flat values; what only a GPU, a CPU or one family of kernels has is empty for the others."""
    spec, source = point.spec, generate(point.spec)
    values: dict[str, object] = {"spec": spec.name, **asdict(spec.problem), "target": spec.target}
    values |= {"layout": spec.layout, "order": spec.order, "chunk": point.chunk, "family": spec.family}
    values |= {column_of(name): getattr(spec.schedule, name, None) for name in _CHOICES}
    values |= {field.name: getattr(point, field.name) for field in fields(Point) if field.name not in _FLATTENED}
    values |= {"source": source_hash(source.text), "flags": " ".join(source.flags)}
    values |= {name: point.conditions.get(name, "") for name in _CONDITIONS}
    values |= {"copy_bytes_per_second": ceilings.copy_bytes_per_second}
    values |= {"peak_flops_per_second": ceilings.peak_flops_per_second}
    return values | dict(about)


_FLATTENED = ("spec", "chunk", "conditions")
# What schedules choose, of any family: every row has the same columns.
_CHOICES = tuple(dict.fromkeys(name for family in FAMILIES.values() for name in axes_of(family)))
_CONDITIONS = ("gpu_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttle")


def append(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows to a file, with a header if it is new; a file is not made for none.

    Raises
    ------
    DataFileError
        If the file has other columns, or cannot be written.
    """
    if not rows:
        return
    columns = list(rows[0])
    try:
        old = path.exists() and path.stat().st_size > 0
        if old:
            with open(path, newline="", encoding="utf-8", opener=for_reading) as stream:
                found = next(csv.reader(stream), [])
            if sorted(found) != sorted(columns):
                raise DataFileError(path, "line 1", "has the columns of another version: choose another file")
            columns = found
        with path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, columns, lineterminator="\n")
            if not old:
                writer.writeheader()
            writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)
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


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Measured:
    """What a report needs of a row: one correct measurement.

    `seconds` is the median of `samples` calls for the whole batch, `roofline_seconds` what the batch takes at least,
    `floor_seconds` what a call takes that does nothing, both NaN where the file does not say it.
    """

    spec: str
    n: int
    dtype: str
    math: str
    batch: int
    protocol: str
    samples: int
    seconds: float
    spread: float
    floor_seconds: float
    roofline_seconds: float
    ratio: float
    machine: str
    date: str

    @property
    def gflops(self) -> float:
        return flops(self.n) * self.batch / self.seconds / 1e9

    @property
    def roofline_gflops(self) -> float:
        return flops(self.n) * self.batch / self.roofline_seconds / 1e9

    @property
    def roofline_fraction(self) -> float:
        return self.roofline_seconds / self.seconds


def read(path: Path) -> list[Measured]:
    """The correct measurements of a file that `append` wrote.

    Raises
    ------
    DataFileError
        If it cannot be read or is something else; names the line, or the columns that it lacks.
    """
    measured = []
    for line, values in _rows(path):
        with _named(path, line):
            measured.append(_measured(values))
    return measured


# What a row of any version has.
_NEEDED = (
    *("n", "dtype", "target", "layout", "math", "batch", "threads", "status", "median_seconds", "spread", "ratio"),
    *("samples", "gpu or cpu", "toolkit or compiler", "date"),
)


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The correct rows of a file with their lines."""
    try:
        with open(path, newline="", encoding="utf-8", opener=for_reading) as stream:
            reader = csv.DictReader(stream)
            columns = set(reader.fieldnames or ())
            if missing := [names for names in _NEEDED if columns.isdisjoint(names.split(" or "))]:
                reason = f"not a file of `tune`, columns are missing ({', '.join(missing)}): choose another one"
                raise DataFileError(path, "line 1", reason)
            for line, values in enumerate(reader, start=2):
                if values["status"] == "correct":
                    yield line, values
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataFileError(path, "reading", str(error)) from error


@contextmanager
def _named(path: Path, line: int) -> Iterator[None]:
    """Whatever is wrong with a row, in words."""
    try:
        yield
    except (KeyError, ValueError, TypeError) as error:
        reason = f"not a row of a tuning run ({error!r}): choose another file"
        raise DataFileError(path, f"line {line}", reason) from error


"""Between the first day and the last one of a `period`."""


def read_points(path: Path) -> Points:
    """The correct points of a file that `append` wrote, or of the data set of a sweep, specs and all.

    Raises
    ------
    DataFileError
        If it cannot be read or is something else; names the line.
    """
    if path.is_dir() or path.suffix == ".parquet":
        # What needs pyarrow is loaded where there is something for it.
        from batchchol.tune import tuned

        return tuned.read_points(path)
    points: list[Point] = []
    copies: list[float] = []
    last: Mapping[str, str] = {}
    for line, values in _rows(path):
        with _named(path, line):
            points.append(_point(values))
            copies += [float(text)] if (text := values.get("copy_bytes_per_second")) else []
        last = values
    if not points:
        raise DataFileError(path, "reading", "has no correct measurement: choose another file")
    machine, toolkit = last.get("gpu") or last["cpu"], last.get("toolkit") or last["compiler"].split("|")[0].strip()
    return Points(tuple(points), machine, toolkit, last["date"], median(copies) if copies else None)


def _point(values: Mapping[str, str]) -> Point:
    """A row's point; what it does not say of a spec is what older files took for granted."""
    family = FAMILIES[values.get("family") or ThreadSchedule.family]
    chosen = {name: _value(text) for name in axes_of(family) if (text := values.get(column_of(name)))}
    problem = Problem(int(values["n"]), values["dtype"], values.get("uplo") or "lower", math=values["math"])
    order = values.get("order") or "col"
    spec = KernelSpec(problem, values["layout"], order, family(**chosen), values["target"])
    return Point(
        spec,
        int(values["chunk"]) if values.get("chunk") else None,
        int(values["batch"]),
        int(values["threads"]),
        values.get("protocol") or "single",
        values["status"],
        float(values["median_seconds"]),
        float(values["spread"]),
        float(values["ratio"]),
        int(values["samples"]),
        float(values.get("floor_seconds") or "nan"),
    )


def _value(text: str) -> Any:
    """A field of a schedule: a truth value, a number or a word."""
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdecimal() else text


def _measured(values: Mapping[str, str]) -> Measured:
    n, batch, dtype = int(values["n"]), int(values["batch"]), values["dtype"]
    return Measured(
        spec=values.get("spec") or _point(values).spec.name,
        n=n,
        dtype=dtype,
        math=values["math"],
        batch=batch,
        protocol=values.get("protocol") or "single",
        samples=int(values["samples"]),
        seconds=float(values["median_seconds"]),
        spread=float(values["spread"]),
        floor_seconds=float(values.get("floor_seconds") or "nan"),
        roofline_seconds=_roofline(values),
        ratio=float(values["ratio"]),
        machine=values.get("gpu") or values["cpu"],
        date=values["date"],
    )


def _roofline(values: Mapping[str, str]) -> float:
    """What a row's batch takes at least by the ceilings that it names; NaN if it names none."""
    copy, peak = (values.get(name) for name in ("copy_bytes_per_second", "peak_flops_per_second"))
    if not copy or not peak:
        return float("nan")
    dtype = values["dtype"]
    ceilings = Ceilings(float(copy), float(peak), int(values["threads"]), dtype, values["target"])
    layout = Layout(values["layout"], int(values["chunk"]) if values["chunk"] else None, values["order"])
    return roofline_seconds(int(values["n"]), int(values["batch"]), layout, ceilings)
