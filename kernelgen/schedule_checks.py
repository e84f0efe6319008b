"""What schedules of all families have, and what is refused of it."""

from __future__ import annotations

from typing import Protocol

from kernelgen.refusals import keep_integer, one_of, require
from kernelgen.targets import Target

MATHS = ("ieee", "fast")
CACHES = ("l1", "shared")
UNROLLS = ("tiles", "full")
MAX_CHUNK = 512
MAX_RESIDENT_BLOCKS = 32


class Common(Protocol):
    """What every family's schedules have."""

    @property
    def math(self) -> str:
        """The accuracy class."""

    @property
    def cache(self) -> str | None:
        """What the hardware's split of on-chip memory favours."""

    @property
    def stride(self) -> int | None:
        """The only chunk."""

    @property
    def pdl(self) -> bool | None:
        """Whether launches are programmatic dependent ones."""


def check_common(schedule: Common) -> None:
    """Refuse what no family has."""
    one_of("math", schedule.math, MATHS)
    if schedule.cache is not None:
        one_of("cache", schedule.cache, CACHES)
    if schedule.stride is not None:
        keep_integer(schedule, "stride", 2, MAX_CHUNK)
    check_choice("pdl", schedule.pdl)


def check_choice(field: str, got: object) -> None:
    """Refuse what is no choice between two, or to leave it to the target."""
    require(isinstance(got, bool | None), field, got, "use True, False or None")


def check_gpu(family: str, target: Target) -> None:
    """Refuse a CPU for a family that it has not."""
    works = f"target {target.name!r} has the family 'thread' alone"
    require(target.gpu, "family", family, works)


def check_stride(schedule: Common, layout: str) -> None:
    """Refuse a constant chunk where there is no chunk."""
    require(
        schedule.stride is None or layout == "chunked",
        "stride",
        schedule.stride,
        f"in layout {layout!r} it depends on nothing but the batch, use None",
    )


def memory_words(schedule: Common) -> tuple[str, ...]:
    """The end of a kernel's name."""
    words = [] if schedule.cache is None else [schedule.cache]
    words += [] if schedule.stride is None else [f"s{schedule.stride}"]
    return (*words, *["pdl"] * bool(schedule.pdl))
