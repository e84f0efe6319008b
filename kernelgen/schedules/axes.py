"""The choices of a schedule: each is declared once, in its field, and checked, listed and explained from there.

A family's schedule is a frozen dataclass over `BaseSchedule`, with one field for each tuning axis. What the field is
declared with, an `Axis`, says which values there are and what they decide: options of the command line, parameters
of a search and the words of a report follow from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

from kernelgen.operations import Operation
from kernelgen.problem import MAX_CHUNK, Problem
from kernelgen.refusals import keep_integer, one_of, require
from kernelgen.targets import Target

LOOKINGS = ("right", "left", "top")
UNROLLS = ("tiles", "full")
UPDATES = ("tensor", "fma")
CACHES = ("l1", "shared")
MAX_RESIDENT_BLOCKS = 32
# The largest tile that threads hold in registers.
MAX_NB = 16

_KEY = "axis"


@dataclass(frozen=True)
class Axis:
    """One choice of a schedule.

    Attributes
    ----------
    help : str
        What it decides.
    words : tuple of str
        Its values, from one end of their order to the other, if they are words.
    least, most : int
        Its range, if its values are integers. If they are neither they are True and False.
    only : str or None
        The targets that have it: "simd", "gpu", or None for all.
    """

    help: str
    words: tuple[str, ...] = ()
    least: int = 0
    most: int = 0
    only: str | None = None

    @property
    def is_switch(self) -> bool:
        """Whether its values are True and False."""
        return not self.words and not self.most

    def keep(self, schedule: BaseSchedule, name: str) -> None:
        """Refuse a value of the schedule's field that is none of the axis."""
        got = getattr(schedule, name)
        if self.words:
            one_of(name, got, self.words)
        elif self.most:
            keep_integer(schedule, name, self.least, self.most)
        else:
            require(isinstance(got, bool), name, got, "use True, False or None")


def word(words: tuple[str, ...], default: Any, help: str, **about: Any) -> Any:
    """A field whose values are these words."""
    return _field(default, Axis(help, words=words, **about))


def number(least: int, most: int, default: Any, help: str, **about: Any) -> Any:
    """A field whose values are the integers from `least` to `most`; a default of MISSING is none."""
    return _field(default, Axis(help, least=least, most=most, **about))


def switch(help: str, **about: Any) -> Any:
    """A field whose values are True and False; None, its default, is the target's."""
    return _field(None, Axis(help, **about))


def resident_blocks() -> Any:
    """The field `blocks` of those families that have it."""
    return number(1, MAX_RESIDENT_BLOCKS, None, "blocks that a multiprocessor has room for", only="gpu")


def _field(default: Any, axis: Axis) -> Any:
    return field(default=default, metadata={_KEY: axis})


@dataclass(frozen=True, kw_only=True)
class BaseSchedule(ABC):
    """What schedules of all families have; None stands for a default, which the spec of a kernel fills in.

    GPUs alone have the three choices here: `cache`, which of the two the hardware's split of its on-chip memory
    favours; `stride`, the only chunk that the kernel runs on, its offsets being constants of the code (None is any
    chunk, given at run time); and `pdl`, whether it may be launched while what is ahead of it on its stream still
    runs, for which it then waits itself (programmatic dependent launch, from compute capability 9.0 on).
    """

    family: ClassVar[str]
    gpu_only: ClassVar[bool] = True
    # Whether the family has orders above `MAX_N`.
    larger: ClassVar[bool] = False
    operations: ClassVar[tuple[str, ...]] = ("potrf",)

    cache: str | None = word(CACHES, None, "what a GPU's on-chip memory favours", only="gpu")
    stride: int | None = number(2, MAX_CHUNK, None, "the only chunk that a GPU kernel runs on", only="gpu")
    pdl: bool | None = switch("whether a kernel is launched before its predecessors have ended", only="gpu")

    @property
    def halves(self) -> bool:
        """Whether vectors are half of what a target has."""
        return False

    def __post_init__(self) -> None:
        for entry in fields(self):
            if getattr(self, entry.name) is not None or entry.default is not None:
                entry.metadata[_KEY].keep(self, entry.name)

    def settled(self, target: Target, problem: Problem) -> Self:
        """The schedule with the defaults for a target and a problem; refuses what the target has no choice of."""
        if self.gpu_only:
            check_gpu(self.family, target)
        other = "simd" if target.gpu else "gpu"
        for name, axis in axes_of(type(self)).items():
            works = f"target {target.name!r} has no such choice, use None"
            require(axis.only != other or getattr(self, name) is None, name, getattr(self, name), works)
        return replace(self, pdl=self.pdl or None, **self._defaults(target, problem))

    @abstractmethod
    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        """The family's own fields as they are once they are settled."""

    @abstractmethod
    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""

    @abstractmethod
    def method(self, operation: Operation) -> tuple[str, ...]:
        """The part of a kernel's name that says how it carries out an operation, but for the math."""

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail, but for what the layout decides."""
        words = [] if self.cache is None else [self.cache]
        words += [] if self.stride is None else [f"s{self.stride}"]
        return (*words, *["pdl"] * bool(self.pdl))


def axes_of(schedule: type[BaseSchedule]) -> Mapping[str, Axis]:
    """The axes of a family by their names: its own, then those of all families."""
    common = {entry.name for entry in fields(BaseSchedule)}
    entries = sorted(fields(schedule), key=lambda entry: entry.name in common)
    return MappingProxyType({entry.name: entry.metadata[_KEY] for entry in entries})


def required_axes(schedule: type[BaseSchedule]) -> tuple[str, ...]:
    """The axes of a family that have no default."""
    return tuple(entry.name for entry in fields(schedule) if entry.default is MISSING)


def check_gpu(family: str, target: Target) -> None:
    """Refuse a CPU for a family that only GPUs have."""
    require(target.gpu, "family", family, f"target {target.name!r} has the family 'thread' alone")


def check_stride(schedule: BaseSchedule, layout: str) -> None:
    """Refuse a constant chunk where there is no chunk."""
    works = f"in layout {layout!r} it depends on nothing but the batch, use None"
    require(schedule.stride is None or layout == "chunked", "stride", schedule.stride, works)


def check_tile(
    schedule: BaseSchedule, nb: int, problem: Problem, layout: str, least: int = 1, most: int = MAX_NB
) -> None:
    """A tile fits the matrix, or is the smallest there is; a constant stride has a chunk to be the stride of."""
    most = max(min(problem.n, most), least)
    require(nb <= most, "nb", nb, f"a tile fits the matrix, use nb from {least} to {most}")
    check_stride(schedule, layout)
