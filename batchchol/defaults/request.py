"""Requests for kernels, which tables of defaults answer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from batchchol.defaults.tables import Case
from kernelgen import TARGETS, KernelSpec, Layout, Problem, SpecError, ThreadSchedule, WarpSchedule, WholeSchedule
from kernelgen.refusals import whole
from kernelgen.schedules.stages.general import least_split

# What is chosen for a batch of unknown size: speeds are stated for this one.
TYPICAL_BATCH = 16_384


@dataclass(frozen=True)
class Request:
    """A request for a kernel.

    Attributes
    ----------
    problem : Problem
        What it computes.
    target : str
        As in `KernelSpec`.
    layout, order : str
        As in `KernelSpec`.
    chunk : int, optional
        That of the batch: the kernel is then the best on it, and may run on no other.
    in_place : bool
        As in `KernelSpec`.
    batch : int, optional
        How many matrices there are; by default 16,384.
    arch : str, optional
        The GPU's architecture, such as "sm_90"; see `source_of`.
    device : str, optional
        The name of the GPU or CPU, a backend's `model`: what the user measured on it comes first.
    """

    problem: Problem
    target: str
    layout: str = "chunked"
    order: str = "col"
    chunk: int | None = None
    in_place: bool = False
    batch: int | None = None
    arch: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        size = None if self.batch is None else whole(self.batch)
        if self.batch is not None and (size is None or size < 0):
            raise SpecError(f"batch={self.batch!r} cannot be built: use an integer from 0 up")
        object.__setattr__(self, "batch", size)

    @property
    def case(self) -> Case:
        """The case of a table that is asked for."""
        problem, chunk = self.problem, self.chunk if self.layout == "chunked" else None
        order = self.lower_order if self.layout == "canonical" else None
        return Case(problem.dtype, problem.math, self.layout, chunk, order, problem.op)

    @property
    def lower_order(self) -> str:
        """The order in which a lower triangle lies like the problem's."""
        return self.order if self.problem.uplo == "lower" else {"row": "col", "col": "row"}[self.order]

    @property
    def size(self) -> int:
        """How many matrices there are, or are assumed."""
        return TYPICAL_BATCH if self.batch is None else self.batch

    @property
    def where(self) -> dict[str, Any]:
        """The place and the type, as `default_layout` and `array_layout` take them."""
        return {"target": self.target, "dtype": self.problem.dtype, "arch": self.arch, "device": self.device}

    def on(self, layout: Layout) -> Request:
        """The same of a batch in a layout."""
        return replace(self, layout=layout.kind, order=layout.order, chunk=layout.chunk)

    @property
    def plain(self) -> KernelSpec:
        """A kernel that can be built for any valid request: if refused, an argument is wrong, or there is none."""
        operation = self.problem.operation
        registers = operation.in_registers or operation.general
        straight = self.target in TARGETS and TARGETS[self.target].gpu and registers
        looking = str(operation.fixed.get("looking", "left"))
        where = self.target, self.in_place
        try:
            split = least_split(self.problem) if straight and operation.general else None
            schedule = ThreadSchedule(1, looking, "full" if straight else "tiles", split=split)
            return KernelSpec(self.problem, self.layout, self.order, schedule, *where)
        except SpecError:
            # Shared memory has no room for as many larger matrices as a warp has threads.
            if self.problem.op not in WarpSchedule.operations:
                raise
            for other in (WarpSchedule(warps=2), WholeSchedule()):
                with suppress(SpecError):
                    return KernelSpec(self.problem, self.layout, self.order, other, *where)
            raise
