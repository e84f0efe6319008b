"""The shared family, the older of the published methods: a thread to each element of a tile."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Any, ClassVar

from kernelgen.gpu import (
    MAX_BLOCK_THREADS,
    WARP,
)
from kernelgen.operations import Operation
from kernelgen.problem import Problem
from kernelgen.refusals import keep_integer
from kernelgen.schedules.axes import (
    LOOKINGS,
    BaseSchedule,
    check_tile,
    number,
    word,
)
from kernelgen.targets import Target

# A tile of the shared family has a thread for each of its elements.
MAX_SHARED_NB = 32


@dataclass(frozen=True)
class SharedSchedule(BaseSchedule):
    """A block of threads for a few matrices, one thread for each element of a tile, operands in shared memory.

    The older of the published methods. `nb` is the tile size, `looking` when updates are applied, `matrices` how many
    a block factors side by side, by default as many as its threads suffice for, at most a warp.
    """

    family: ClassVar[str] = "shared"

    nb: int = number(1, MAX_SHARED_NB, MISSING, "tile size")
    looking: str = word(LOOKINGS, "left", "when updates are applied")
    matrices: int | None = number(1, MAX_BLOCK_THREADS, None, "matrices of a block", only="gpu")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.matrices is not None:
            keep_integer(self, "matrices", 1, MAX_BLOCK_THREADS // self.nb**2)

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        matrices = self.matrices or min(MAX_BLOCK_THREADS // self.nb**2, WARP)
        return {"matrices": matrices, "cache": self.cache or "shared"}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        check_tile(self, self.nb, problem, layout, most=MAX_SHARED_NB)

    def method(self, operation: Operation) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (self.family, self.looking, f"nb{self.nb}", f"m{self.matrices}")
