"""What a sweep keeps of a point: one row of a data set, in schema version 1 (docs/tuning-data.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from batchchol.measure.point import Point
from batchchol.measure.timing import spread
from kernelgen import FAMILIES, KernelSpec, SpecError
from kernelgen.axes import axes_of

_Values = TypeVar("_Values", bound=Mapping[str, Any])

SCHEMA_VERSION = 1
"""Raised when a column changes its meaning or goes; one that is new is null in older files."""

STATUSES = ("correct", "compile", "timeout", "wrong", "runtime", "unsupported")
"""A number was measured; no code; code or answer not in time; a wrong factor; a failure on the device; cannot run."""

Value = str | int | float | bool | None


def _choices() -> dict[str, str]:
    """What schedules choose, of any family, with Arrow's types: a row has a column for each."""
    axes = {column_of(name): axis for family in FAMILIES.values() for name, axis in axes_of(family).items()}
    kinds = {name: "string" if axis.words else "bool" if axis.is_switch else "int32" for name, axis in axes.items()}
    # The math was a choice of the schedule when the first data sets were written: it stays among its columns.
    first = list(kinds)[: list(kinds).index("unroll") + 1]
    return {name: kinds[name] for name in first} | {"math": "string"} | kinds


def choice_columns() -> tuple[str, ...]:
    """The columns of what schedules choose, of all families."""
    return tuple(_choices())


def column_of(choice: str) -> str:
    """The column of a schedule's choice; `threads` of a row are the host's, those of a GPU's block are `block`."""
    return "block" if choice == "threads" else choice


COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        # The kernel.
        "spec": "string",
        "definition": "string",
        "family": "string",
        "op": "string",
        "n": "int32",
        "dtype": "string",
        "uplo": "string",
        "target": "string",
        "layout": "string",
        "order": "string",
        "in_place": "bool",
        **_choices(),
        # The batch, and the manner of measuring.
        "space": "string",
        "chunk": "int32",
        "batch": "int64",
        "threads": "int32",
        "protocol": "string",
        "any_block": "bool",
        "recipe": "string",
        # What came of it.
        "status": "string",
        "message": "string",
        "samples": "int32",
        "calls": "int32",
        "sample_seconds": "float32 list",
        "median_seconds": "float64",
        "spread": "float64",
        "ratio": "float64",
        "floor_seconds": "float64",
        "check_seconds": "float64",
        "wall_seconds": "float64",
        # The code.
        "source": "string",
        "flags": "string",
        "compile_seconds": "float64",
        "code_bytes": "int64",
        "registers": "int32",
        "spill_bytes": "int32",
        "shared_bytes": "int32",
        "stack_bytes": "int32",
        "occupancy": "float64",
        # The device at that moment.
        "gpu_clock_mhz": "float64",
        "memory_clock_mhz": "float64",
        "temperature_c": "float64",
        "power_w": "float64",
        "throttle": "string",
        # The machine, and the software on it.
        "device": "string",
        "gpu": "string",
        "cpu": "string",
        "driver": "string",
        "toolkit": "string",
        "compiler": "string",
        "copy_bytes_per_second": "float64",
        "peak_flops_per_second": "float64",
        "version": "string",
        "python": "string",
        "numpy": "string",
        "pycuda": "string",
        "commit": "string",
        "date": "string",
    }
)
"""The columns of a row and the types that Arrow has for them."""

CODE = ("compile_seconds", "code_bytes", "registers", "spill_bytes", "shared_bytes", "stack_bytes", "occupancy")
"""The columns that describe compiled code in numbers."""


@dataclass(frozen=True)
class Row:
    """One point and what came of it.

    Attributes
    ----------
    point : Point
        What was measured.
    status : str
        One of `STATUSES`.
    message : str
        Why there is no number.
    seconds : tuple of float
        Of a call, each sample's.
    calls : int
        In a sample, back to back.
    ratio : float
        The largest residual ratio of all results that were checked.
    floor_seconds, check_seconds, wall_seconds : float
        Of a call that does nothing; of the check; of the whole point.
    source, flags : str
        Hash of the code's text, and what the compiler was told besides.
    code, conditions, about : mapping
        More columns: of the code (`CODE`), of the device at that moment, of the machine and the software.
    """

    point: Point
    status: str
    message: str = ""
    seconds: tuple[float, ...] = ()
    calls: int = 0
    ratio: float = math.nan
    floor_seconds: float = math.nan
    check_seconds: float = math.nan
    wall_seconds: float = math.nan
    source: str = ""
    flags: str = ""
    code: Mapping[str, Value] = field(default_factory=dict)
    conditions: Mapping[str, Value] = field(default_factory=dict)
    about: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status: got {self.status!r}, expected one of {', '.join(STATUSES)}")

    @property
    def median_seconds(self) -> float:
        return float(np.median(self.seconds)) if self.seconds else math.nan

    @property
    def spread(self) -> float:
        """The interquartile range over the median."""
        return spread(self.seconds) if self.seconds else math.nan

    def values(self) -> dict[str, Any]:
        """The row as a data set has it: every column, None where there is nothing to say."""
        values: dict[str, Any] = dict.fromkeys(COLUMNS)
        values |= _kernel(self.point.spec)
        values |= {"chunk": self.point.chunk, "batch": self.point.batch, "threads": self.point.threads}
        values |= {"protocol": self.point.protocol, "any_block": self.point.any_block}
        values |= {"status": self.status, "message": self.message}
        values |= {"samples": len(self.seconds), "calls": self.calls, "sample_seconds": list(self.seconds)}
        measured = ("median_seconds", "spread", "ratio", "floor_seconds", "check_seconds", "wall_seconds")
        values |= {name: _finite(getattr(self, name)) for name in measured}
        values |= {"source": self.source, "flags": self.flags}
        for more in (self.code, self.conditions, self.about):
            values |= {name: value for name, value in more.items() if name in COLUMNS}
        return values


def point_of(values: Mapping[str, Any]) -> Point:
    """The point of a row.

    Raises
    ------
    SpecError
        If its definition is of no kernel that can be built now.
    """
    spec = KernelSpec.from_dict(json.loads(values["definition"]))
    return Point(
        spec, values["batch"], values["chunk"], values["threads"], values["protocol"], bool(values["any_block"])
    )


def points_of(rows: Iterable[_Values]) -> Iterator[tuple[Point, _Values]]:
    """The points of rows, with their rows; but for those of kernels that this version cannot build any more."""
    for row in rows:
        try:
            yield point_of(row), row
        except SpecError:
            continue


def _kernel(spec: KernelSpec) -> dict[str, Any]:
    definition = spec.to_dict()
    chosen = {column_of(name): value for name, value in definition["schedule"].items()}
    return {
        "spec": spec.name,
        "definition": json.dumps(definition, separators=(",", ":")),
        **definition["problem"],
        "target": spec.target,
        "layout": spec.layout,
        "order": spec.order,
        "in_place": spec.in_place,
        **{name: value for name, value in chosen.items() if name in COLUMNS},
    }


def _finite(value: float) -> float | None:
    """Numbers that say nothing are null; an infinite ratio says something."""
    return None if math.isnan(value) else value
