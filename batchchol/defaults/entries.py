"""The entries of a user's table: what each says, and how its file has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from batchchol.batches.sizes import LARGEST
from batchchol.defaults.tables import Case, schedule_of, values_of, without_none
from kernelgen import KernelSpec, Layout, Problem, Schedule
from kernelgen.targets import ELEMENT_BYTES

CASE = ("dtype", "math", "layout", "chunk", "order")
"""The fields of an entry that name its case, an operation aside."""

_OPTIONAL = ("incumbent_ns", "runner_up_ns")


@dataclass(frozen=True)
class Tuned:
    """The best schedule of a case at one order and batch, measured against the one that was used before.

    Times are nanoseconds of a matrix, None where there was nothing to measure. `kept`: the one that comes with the
    library stays, and the entry is only evidence for it. `margin` is what another one had to be faster by, as a
    part of its time; `about` says when, with what and how it was measured.
    """

    case: Case
    n: int
    batch: int
    schedule: Schedule
    ns: float
    kept: bool
    incumbent: Schedule
    incumbent_ns: float | None
    margin: float
    runner_up: Schedule | None = None
    runner_up_ns: float | None = None
    about: Mapping[str, str | int] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The entry as its file has it."""
        values = {**asdict(self.case), "n": self.n, "batch": self.batch, **_numbers(self)}
        schedules = {"schedule": self.schedule, "incumbent": self.incumbent, "runner_up": self.runner_up}
        values |= {name: values_of(schedule) for name, schedule in schedules.items() if schedule is not None}
        return without_none(values | {"runner_up_ns": self.runner_up_ns, "about": dict(self.about)})


@dataclass(frozen=True)
class Placed:
    """The layout for an order and a batch: `section` says of what, "layouts" of batches or "arrays"; as `Tuned`."""

    section: str
    dtype: str
    n: int
    batch: int
    layout: Layout
    ns: float
    kept: bool
    incumbent: Layout
    incumbent_ns: float | None
    margin: float
    about: Mapping[str, str | int] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The placement as its file has it."""
        values: dict[str, Any] = {name: getattr(self, name) for name in PLACE} | _numbers(self)
        values |= {name: without_none(asdict(getattr(self, name))) for name in ("layout", "incumbent")}
        return without_none(values | {"about": dict(self.about)})


PLACE = ("section", "dtype", "n", "batch")
"""The fields that name what a placement is of."""


@dataclass(frozen=True)
class Planned:
    """How larger matrices of a dtype, an order and a batch are factored, by the choices of its plan; as `Tuned`."""

    dtype: str
    n: int
    batch: int
    plan: Mapping[str, str | int]
    ns: float
    kept: bool
    incumbent: Mapping[str, str | int]
    incumbent_ns: float | None
    margin: float
    runner_up: Mapping[str, str | int] | None = None
    runner_up_ns: float | None = None
    about: Mapping[str, str | int] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The entry as its file has it."""
        values: dict[str, Any] = {name: getattr(self, name) for name in PLANNED} | _numbers(self)
        plans = {"plan": self.plan, "incumbent": self.incumbent, "runner_up": self.runner_up}
        values |= {name: dict(choices) for name, choices in plans.items() if choices is not None}
        return without_none(values | {"runner_up_ns": self.runner_up_ns, "about": dict(self.about)})


PLANNED = ("dtype", "n", "batch")
"""The fields that name what a plan is of."""


def op_of(values: Mapping[str, Any]) -> str:
    """The operation of an entry: the oldest one names none."""
    return str(values.get("op") or "potrf")


def tuned_of(values: Mapping[str, Any], target: str) -> Tuned:
    """The entry of a file, once it can be built for a target; other errors than SpecError are those of Python."""
    case = Case(**{name: values.get(name) for name in CASE} | {"op": op_of(values)})  # type: ignore[arg-type]
    runner_up = values.get("runner_up")
    tuned = Tuned(
        case,
        _positive(values, "n"),
        _positive(values, "batch"),
        schedule_of(values["schedule"]),
        incumbent=schedule_of(values["incumbent"]),
        runner_up=None if runner_up is None else schedule_of(runner_up),
        runner_up_ns=_number(values, "runner_up_ns"),
        **_timed(values),
    )
    # Check that it can be built.
    order = "col" if case.order is None else case.order
    KernelSpec(Problem(tuned.n, case.dtype, op=case.op, math=case.math), case.layout, order, tuned.schedule, target)
    return tuned


def placed_of(values: Mapping[str, Any]) -> Placed:
    """The placement of a file."""
    section, dtype = values["section"], values["dtype"]
    layouts = (Layout(**values[name]) for name in ("layout", "incumbent"))
    layout, incumbent = layouts
    if section not in ("layouts", "arrays"):
        raise ValueError(f"section={section!r}")
    n, batch = _positive(values, "n"), _positive(values, "batch")
    Problem(n, dtype)
    return Placed(section, dtype, n, batch, layout, incumbent=incumbent, **_timed(values))


def planned_of(values: Mapping[str, Any]) -> Planned:
    """The plan of a file."""
    dtype, runner_up = values["dtype"], values.get("runner_up")
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype={dtype!r}")
    return Planned(
        dtype,
        _positive(values, "n"),
        _positive(values, "batch"),
        dict(values["plan"]),
        incumbent=dict(values["incumbent"]),
        runner_up=None if runner_up is None else dict(runner_up),
        runner_up_ns=_number(values, "runner_up_ns"),
        **_timed(values),
    )


def _timed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ns": _number(values, "ns"),
        "kept": bool(values["kept"]),
        "incumbent_ns": _number(values, "incumbent_ns"),
        "margin": _number(values, "margin"),
        "about": dict(values["about"]),
    }


def _numbers(each: Tuned | Placed | Planned) -> dict[str, Any]:
    return {name: getattr(each, name) for name in ("kept", "ns", "incumbent_ns", "margin")}


def _positive(values: Mapping[str, Any], name: str) -> int:
    value = values[name]
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise ValueError(f"{name}={value!r}")
    return value


def _number(values: Mapping[str, Any], name: str) -> float | None:
    """A finite number that is not negative; None if an optional one is missing."""
    value = values.get(name) if name in _OPTIONAL else values[name]
    if value is None and name in _OPTIONAL:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name}={value!r}")
    return float(value)
