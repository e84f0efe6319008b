"""Measured points of a tuning run as rows of a CSV file, each with its provenance."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from batchchol.errors import DataFileError
from batchchol.provenance import source_hash
from batchchol.roofline import Ceilings, flops, roofline_seconds
from batchchol.tuning import Point
from kernelgen import FAMILIES, Layout, generate

_DIGITS = 5


def row(point: Point, ceilings: Ceilings, about: Mapping[str, str]) -> dict[str, object]:
    """A point as flat values; what only a GPU, a CPU or one family of kernels has is empty for the others."""
    spec, source = point.spec, generate(point.spec)
    values: dict[str, object] = {"spec": spec.name, **asdict(spec.problem), "target": spec.target}
    values |= {"layout": spec.layout, "order": spec.order, "chunk": point.chunk, "family": spec.family}
    # `threads` of a point are the host's.
    values |= {"block" if name == "threads" else name: getattr(spec.schedule, name, None) for name in _CHOICES}
    values |= {field.name: getattr(point, field.name) for field in fields(Point) if field.name not in _FLATTENED}
    values |= {"source": source_hash(source.text), "flags": " ".join(source.flags)}
    values |= {name: point.conditions.get(name, "") for name in _CONDITIONS}
    values |= {"copy_bytes_per_second": ceilings.copy_bytes_per_second}
    values |= {"peak_flops_per_second": ceilings.peak_flops_per_second}
    return values | dict(about)


_FLATTENED = ("spec", "chunk", "conditions")
# What schedules choose, of any family: every row has the same columns.
_CHOICES = tuple(dict.fromkeys(field.name for schedule in FAMILIES.values() for field in fields(schedule)))
_CONDITIONS = ("gpu_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttle")


def append(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows to a file, with a header if it is new.

    Raises
    ------
    DataFileError
        If the file has other columns, or cannot be written.
    """
    columns = list(rows[0])
    try:
        old = path.exists() and path.stat().st_size > 0
        if old:
            with path.open(newline="", encoding="utf-8") as stream:
                found = next(csv.reader(stream), [])
            if found != columns:
                raise DataFileError(path, "line 1", "has the columns of another version: choose another file")
        with path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, columns, lineterminator="\n")
            if not old:
                writer.writeheader()
            writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)
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
    `floor_seconds` what a call takes that does nothing, NaN if that is not known.
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
        If it cannot be read or is something else; names the line.
    """
    measured = []
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for line, values in enumerate(csv.DictReader(stream), start=2):
                try:
                    if values["status"] == "correct":
                        measured.append(_measured(values))
                except (KeyError, ValueError, TypeError) as error:
                    reason = f"not a row of a tuning run ({error!r}): choose another file"
                    raise DataFileError(path, f"line {line}", reason) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataFileError(path, "reading", str(error)) from error
    return measured


def _measured(values: Mapping[str, str]) -> Measured:
    n, batch, dtype = int(values["n"]), int(values["batch"]), values["dtype"]
    copy, peak = float(values["copy_bytes_per_second"]), float(values["peak_flops_per_second"])
    ceilings = Ceilings(copy, peak, int(values["threads"]), dtype, values["target"])
    layout = Layout(values["layout"], int(values["chunk"]) if values["chunk"] else None, values["order"])
    return Measured(
        spec=values["spec"],
        n=n,
        dtype=dtype,
        math=values["math"],
        batch=batch,
        protocol=values["protocol"],
        samples=int(values["samples"]),
        seconds=float(values["median_seconds"]),
        spread=float(values["spread"]),
        floor_seconds=float(values["floor_seconds"] or "nan"),
        roofline_seconds=roofline_seconds(n, batch, layout, ceilings),
        ratio=float(values["ratio"]),
        machine=values.get("gpu") or values["cpu"],
        date=values["date"],
    )
