"""One measured row: a point, its result and the conditions, in a schema (docs/tuning-data.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from batchchol.measure.point import Point
from batchchol.measure.timing import spread
from batchchol.operations.roofline import Ceilings, flops, roofline_seconds
from kernelgen import FAMILIES, KernelSpec, SpecError
from kernelgen.schedules.axes import axes_of

SCHEMA_VERSION = 1
"""Raised when a column changes its meaning or goes; one that is new is null in older files."""

STATUSES = ("correct", "compile", "timeout", "wrong", "runtime", "unsupported")
"""A number was measured; no code; code or answer not in time; a wrong factor; a failure on the device; cannot run."""

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Column:
    """A column of a data set: Arrow's type for it, what it says, and the unit of its numbers."""

    dtype: str
    doc: str
    unit: str = ""


def _outcome(dtype: str, doc: str, unit: str = "", *, default: Any = MISSING) -> Any:
    """A field of `Row` that is a column of its name."""
    return field(default=default, metadata={"column": Column(dtype, doc, unit)})


@dataclass(frozen=True)
class Row:
    """One point and its result: see `timed` for a correct one, and `COLUMNS` for the meaning of the fields.

    `about` has more columns by name: of the code, of the device at that moment, of the machine and the software.
    """

    point: Point
    status: str = _outcome("string", "one of `STATUSES`")
    message: str = _outcome("string", "why there is no number", default="")
    samples: int = _outcome("int32", "timed samples", default=0)
    calls: int = _outcome("int32", "calls of a sample, back to back", default=0)
    sample_seconds: tuple[float, ...] = _outcome("float32 list", "a call, each sample's", "s", default=())
    median_seconds: float = _outcome("float64", "the samples' median", "s", default=math.nan)
    spread: float = _outcome("float64", "the samples' interquartile range over their median", default=math.nan)
    ratio: float = _outcome("float64", "the largest residual ratio of all that was checked", default=math.nan)
    floor_seconds: float = _outcome("float64", "a call that does nothing", "s", default=math.nan)
    check_seconds: float = _outcome("float64", "the check", "s", default=math.nan)
    wall_seconds: float = _outcome("float64", "the whole point", "s", default=math.nan)
    source: str = _outcome("string", "the hash of the code's text", default="")
    flags: str = _outcome("string", "further options of the compiler", default="")
    about: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status: got {self.status!r}, expected one of {', '.join(STATUSES)}")

    @classmethod
    def timed(cls, point: Point, seconds: Sequence[float], **columns: Any) -> Row:
        """The row of a correct point whose calls took these seconds, a number a sample."""
        columns |= {"median_seconds": float(np.median(seconds)), "spread": spread(seconds)}
        return cls(point, "correct", samples=len(seconds), sample_seconds=tuple(seconds), **columns)

    @classmethod
    def of(cls, values: Mapping[str, Any], spec: KernelSpec | None = None) -> Row:
        """The row that `values` describe, at least the columns of its point; others may be missing or null.

        Parameters
        ----------
        spec : KernelSpec, optional
            The kernel, by default that of the column `definition`.

        Raises
        ------
        SpecError
            If its definition is of no kernel that can be built now.
        """
        spec = spec or KernelSpec.from_dict(json.loads(values["definition"]))
        placed = {name: values[name] for name in ("batch", "chunk", "threads", "protocol")}
        point = Point(spec, **placed, any_block=bool(values["any_block"]))
        known = {name: value for name in (*_OUTCOMES, *_ABOUT) if (value := values.get(name)) is not None}
        about = {name: known.pop(name) for name in _ABOUT if name in known}
        return cls(point, **known | {"sample_seconds": tuple(known.get("sample_seconds", ()))}, about=about)

    def values(self) -> dict[str, Any]:
        """The row as a data set has it: every column, None where there is nothing to say."""
        values = dict(self.about) | _kernel(self.spec) | {name: getattr(self.point, name) for name in _BATCH}
        values |= {name: _finite(getattr(self, name)) for name in _OUTCOMES}
        values["sample_seconds"] = list(self.sample_seconds)
        return {name: values.get(name) for name in COLUMNS}

    @property
    def spec(self) -> KernelSpec:
        """The kernel."""
        return self.point.spec

    @property
    def correct(self) -> bool:
        """Whether there is a number."""
        return self.status == "correct"

    @property
    def seconds(self) -> float | None:
        """The samples' median; None if the point has no number."""
        return self.median_seconds if self.correct and self.median_seconds > 0 else None

    @property
    def toolkit(self) -> str:
        """What compiled the code: CUDA's version, or the first words of what the compiler says of itself."""
        return toolkit_of(self.about)

    @property
    def day(self) -> str:
        """When it was measured, such as "2026-11-21"."""
        return str(self.about["date"])[:10]

    @property
    def gflops(self) -> float:
        """GFLOP/s of the textbook's flops."""
        return flops(self.spec.problem.n, op=self.spec.problem.op) * self.point.batch / self.median_seconds / 1e9

    @property
    def roofline_seconds(self) -> float:
        """What the batch takes at least by the ceilings that were measured, NaN if none were."""
        found = [self.about.get(name) for name in ("copy_bytes_per_second", "peak_flops_per_second")]
        rates = [float(rate) for rate in found if rate]
        if len(rates) < len(found):
            return math.nan
        problem = self.spec.problem
        ceilings = Ceilings(rates[0], rates[1], self.point.threads, problem.dtype, self.spec.target)
        return roofline_seconds(problem.n, self.point.batch, self.point.layout, ceilings, op=problem.op)


def choice_columns() -> tuple[str, ...]:
    """The columns of what schedules choose, of all families."""
    return tuple(_choices())


def column_of(choice: str) -> str:
    """The column of a schedule's choice; `threads` of a row are the host's, those of a GPU's block are `block`."""
    return "block" if choice == "threads" else choice


def toolkit_of(about: Mapping[str, Any]) -> str:
    """What compiles, by the columns of a machine: CUDA's version, or a compiler's name and version."""
    return str(about.get("toolkit") or str(about.get("compiler") or "").split("|")[0].strip())


def rows_of(values: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """The rows of a data set, except those of kernels that this version can no longer build."""
    for each in values:
        try:
            yield Row.of(each)
        except SpecError:
            continue


def _choices() -> dict[str, Column]:
    """What schedules choose, of any family: a row has a column for each."""
    axes = {column_of(name): axis for family in FAMILIES.values() for name, axis in axes_of(family).items()}
    kinds = {name: "string" if axis.words else "bool" if axis.is_switch else "int32" for name, axis in axes.items()}
    columns = {name: Column(kind, axes[name].help) for name, kind in kinds.items()}
    # The math was a choice of the schedule when the first data sets were written: it stays among its columns.
    first = list(columns)[: list(columns).index("unroll") + 1]
    return {name: columns[name] for name in first} | {"math": Column("string", "the accuracy class")} | columns


_BATCH: Mapping[str, Column] = MappingProxyType(
    {
        "chunk": Column("int32", "matrices of a chunk"),
        "batch": Column("int64", "matrices of a call"),
        "threads": Column("int32", "threads of the host"),
        "protocol": Column("string", "how calls were timed: one of the backend's"),
        "any_block": Column("bool", "whether code for blocks of any size ran"),
    }
)
_OUTCOMES: Mapping[str, Column] = MappingProxyType(
    {each.name: each.metadata["column"] for each in fields(Row) if each.metadata}
)
_KERNEL: Mapping[str, Column] = MappingProxyType(
    {
        "spec": Column("string", "the kernel's name"),
        "definition": Column("string", "the spec as JSON"),
        "family": Column("string", "who works on a matrix"),
        "op": Column("string", "the operation"),
        "n": Column("int32", "order of each matrix"),
        "dtype": Column("string", "type of the elements"),
        "uplo": Column("string", "which triangle"),
        "target": Column("string", '"cuda", or a CPU\'s instruction set'),
        "layout": Column("string", '"canonical", "interleaved" or "chunked"'),
        "order": Column("string", "order of the elements of a matrix"),
        "in_place": Column("bool", "whether the input is overwritten"),
        **_choices(),
    }
)
COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        **_KERNEL,
        "space": Column("string", "the search space"),
        **_BATCH,
        "recipe": Column("string", "the recipe of the data that were timed"),
        **_OUTCOMES,
        "compile_seconds": Column("float64", "compiling, of a module its part", "s"),
        "code_bytes": Column("int64", "machine code", "B"),
        "registers": Column("int32", "registers of a thread"),
        "spill_bytes": Column("int32", "spills stored and loaded", "B"),
        "shared_bytes": Column("int32", "static shared memory of a block", "B"),
        "stack_bytes": Column("int32", "stack of a thread", "B"),
        "occupancy": Column("float64", "resident threads over the most that there can be"),
        "gpu_clock_mhz": Column("float64", "the clock of the multiprocessors", "MHz"),
        "memory_clock_mhz": Column("float64", "the clock of the memory", "MHz"),
        "temperature_c": Column("float64", "the device's temperature", "°C"),
        "power_w": Column("float64", "the device's power", "W"),
        "throttle": Column("string", "what held the clock back"),
        "device": Column("string", "what was measured: the name of the GPU, or of the CPU"),
        "gpu": Column("string", "the GPU's name"),
        "cpu": Column("string", "the CPU's name"),
        "driver": Column("string", "the GPU's driver"),
        "toolkit": Column("string", "CUDA's version"),
        "compiler": Column("string", "what the compiler says of itself"),
        "copy_bytes_per_second": Column("float64", "the ceiling of a copy, read plus written", "B/s"),
        "peak_flops_per_second": Column("float64", "the ceiling of arithmetic", "FLOP/s"),
        "version": Column("string", "of batchchol"),
        "python": Column("string", "version"),
        "numpy": Column("string", "version"),
        "pycuda": Column("string", "version"),
        "commit": Column("string", 'of batchchol, "-dirty" if it was changed since'),
        "date": Column("string", "when the point was finished, UTC, ISO 8601"),
    }
)
"""The columns of a row."""

_ABOUT = tuple(name for name in COLUMNS if name not in {**_KERNEL, **_BATCH, **_OUTCOMES})


def _kernel(spec: KernelSpec) -> dict[str, Any]:
    definition = spec.to_dict()
    return {
        "spec": spec.name,
        "definition": json.dumps(definition, separators=(",", ":")),
        **definition["problem"],
        "target": spec.target,
        "layout": spec.layout,
        "order": spec.order,
        "in_place": spec.in_place,
        **{column_of(name): value for name, value in definition["schedule"].items()},
    }


def _finite(value: Any) -> Any:
    """Numbers that say nothing are null; an infinite ratio says something."""
    return None if isinstance(value, float) and math.isnan(value) else value
