"""A kernel's description: everything that decides its source text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernelgen.problem import LAYOUT_KINDS, MAX_N, ORDERS, Problem
from kernelgen.refusals import SpecError, one_of, require
from kernelgen.schedules import FAMILIES, Schedule, ThreadSchedule
from kernelgen.schedules.axes import axes_of
from kernelgen.targets import TARGETS, Target

_LARGER = " or ".join(repr(family) for family, schedule in FAMILIES.items() if schedule.larger)


@dataclass(frozen=True)
class KernelSpec:
    """Everything that decides a kernel's source text."""

    problem: Problem
    layout: str
    order: str
    schedule: Schedule
    target: str
    in_place: bool = False

    def __post_init__(self) -> None:
        one_of("layout", self.layout, LAYOUT_KINDS)
        one_of("order", self.order, ORDERS)
        one_of("target", self.target, tuple(TARGETS))
        require(isinstance(self.in_place, bool), "in_place", self.in_place, "use True or False")
        operation, target = self.problem.operation, TARGETS[self.target]
        operations = self.schedule.operations
        works = f"family {self.family!r} has {', '.join(operations)}, use another family"
        require(self.problem.op in operations, "op", self.problem.op, works)
        larger = target.gpu and self.schedule.larger and self.layout == "canonical"
        works = f"orders above {MAX_N} are of canonical arrays, on GPUs, of the family {_LARGER}"
        require(self.problem.n <= MAX_N or larger, "n", self.problem.n, works)
        works = "the same kernel solves in place and out of place, use False"
        require(not (self.in_place and operation.has_columns), "in_place", True, works)
        works = f"{operation.name} has its result in another place, use False"
        require(not (self.in_place and (operation.forgets or operation.inverts)), "in_place", True, works)
        works = f"of arrays both triangles are written, use {'poinv' if operation.factors else 'potri'!r}"
        require(not operation.packs or self.layout != "canonical", "op", self.problem.op, works)
        works = "the same kernel works in place and out of place, use False"
        require(not (self.in_place and operation.general), "in_place", True, works)
        object.__setattr__(self, "schedule", self.schedule.settled(target, self.problem))
        self.schedule.check(self.problem, self.layout)

    @property
    def family(self) -> str:
        """Who works on a matrix: "thread", "shared", "block", "warp", "strip" or "whole"."""
        return self.schedule.family

    @property
    def lanes(self) -> int:
        """Matrices that one group of the kernel factors side by side: a SIMD register's, or one to a GPU thread."""
        return self.machine.lanes(self.problem.dtype)

    @property
    def machine(self) -> Target:
        """The target, with the vectors that the kernel has."""
        target = TARGETS[self.target]
        return target.halved() if self.schedule.halves else target

    @property
    def name(self) -> str:
        """A short identifier, one per spec: a legal C identifier and file name."""
        problem, schedule = self.problem, self.schedule
        parts = [
            problem.op,
            {"float32": "f32", "float64": "f64"}[problem.dtype],
            f"n{problem.n}" if problem.m is None else f"m{problem.m}n{problem.n}",
            self.layout,
            self.order,
            *schedule.method(problem.operation),
            problem.math,
            self.target,
        ]
        parts += ["upper"] * (problem.uplo == "upper") + list(schedule.details(self.layout))
        return "_".join(parts + ["inplace"] * self.in_place)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as JSON keeps them; of square matrices without `m`."""
        problem = {name: value for name, value in asdict(self.problem).items() if (name, value) != ("m", None)}
        chosen = {name: getattr(self.schedule, name) for name in axes_of(type(self.schedule))}
        return asdict(self) | {"problem": problem, "schedule": {"family": self.family} | chosen}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KernelSpec:
        """The spec that `to_dict` of this or any older version described.

        What names no family is of the oldest one, "thread"; the math was a choice of the schedule once.

        Raises
        ------
        SpecError
            If a field is missing, unknown or out of range.
        """
        try:
            rest = {key: value for key, value in values.items() if key not in ("problem", "schedule")}
            chosen = {"family": ThreadSchedule.family, **values["schedule"]}
            math = {"math": chosen.pop("math")} if "math" in chosen else {}
            schedule = FAMILIES[chosen.pop("family")](**chosen)
            return cls(problem=Problem(**values["problem"], **math), schedule=schedule, **rest)
        except (KeyError, TypeError) as error:
            raise SpecError(f"not a kernel spec: {error}; use what KernelSpec.to_dict wrote") from error
