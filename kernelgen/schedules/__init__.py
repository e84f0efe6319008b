"""How kernels work: a schedule for each family, in a module of its name, and the axes that they choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kernelgen.schedules.axes import CACHES, LOOKINGS, MAX_NB, MAX_RESIDENT_BLOCKS, UNROLLS, UPDATES
from kernelgen.schedules.block import BlockSchedule
from kernelgen.schedules.shared import SharedSchedule
from kernelgen.schedules.strip import StripSchedule
from kernelgen.schedules.thread import DEFAULT_THREADS, ThreadSchedule
from kernelgen.schedules.warp import WarpSchedule
from kernelgen.schedules.whole import WholeSchedule

Schedule = ThreadSchedule | SharedSchedule | BlockSchedule | WarpSchedule | StripSchedule | WholeSchedule
FAMILIES: Mapping[str, type[Schedule]] = MappingProxyType(
    {
        schedule.family: schedule
        for schedule in (ThreadSchedule, SharedSchedule, BlockSchedule, WarpSchedule, StripSchedule, WholeSchedule)
    }
)


def in_math(schedule: Schedule, was: str, math: str) -> Schedule:
    """A schedule of one accuracy class in another: where defaults differ, by its own default."""
    if was == math or not isinstance(schedule, WarpSchedule):
        return schedule
    return replace(schedule, update=None)


__all__ = [
    "CACHES",
    "DEFAULT_THREADS",
    "FAMILIES",
    "LOOKINGS",
    "MAX_NB",
    "MAX_RESIDENT_BLOCKS",
    "UNROLLS",
    "UPDATES",
    "BlockSchedule",
    "Schedule",
    "SharedSchedule",
    "StripSchedule",
    "ThreadSchedule",
    "WarpSchedule",
    "WholeSchedule",
    "in_math",
]
