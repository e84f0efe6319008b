"""The whole family: a block of warps for one matrix, which is in shared memory, left looking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.gpu import MAX_SHARED_BYTES, WARP
from kernelgen.operations import Operation
from kernelgen.problem import Problem
from kernelgen.refusals import require
from kernelgen.schedules.axes import BaseSchedule, number, resident_blocks
from kernelgen.targets import ELEMENT_BYTES, Target

# Columns of a panel, and the order of the tensor cores' results.
TILE = 8
MAX_WARPS = 16


@dataclass(frozen=True)
class WholeShape:
    """One matrix of order `n` to a block of `warps`: panels of eight columns, each from its diagonal tile on down."""

    n: int
    warps: int
    dtype: str

    @property
    def side(self) -> int:
        """Panels of the matrix, and tiles in the first of them."""
        return -(-self.n // TILE)

    @property
    def threads(self) -> int:
        """Those of a block."""
        return WARP * self.warps

    @property
    def slots(self) -> int:
        """Rows of the first panel to a thread, but for those of the first two tiles."""
        return -(-max(self.n - 2 * TILE, 1) // self.threads)

    @property
    def pitch(self) -> int:
        """Elements from a row of the first panel to that of the second: neighbours in a row meet in no bank."""
        return TILE * (self.n if self.n % 2 else self.n + 1)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: a diagonal tile's factor, reciprocals of its diagonal, and the panels.

        Of these the last one comes first; the first one has room for whole tiles.
        """
        others = (self.side - 1) * (self.pitch - TILE * TILE // 2 * self.side)
        return (TILE * (TILE + 1) + others + TILE * TILE * self.side) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class WholeSchedule(BaseSchedule):
    """A block of warps for one matrix, all of it in shared memory, for arrays.

    Left looking: a panel of eight columns loses the products of all before it, by tensor cores, when its turn comes.
    The first warp factors its diagonal tile meanwhile; then every thread has a row, which it solves for. `blocks` are
    those of the block family.
    """

    family: ClassVar[str] = "whole"
    larger: ClassVar[bool] = True

    warps: int = number(1, MAX_WARPS, 4, "warps of a block", only="gpu")
    blocks: int | None = resident_blocks()

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        return {"blocks": self.blocks or 1, "cache": self.cache or "shared"}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        works = "its matrices are arrays, use 'canonical' or another family"
        require(layout == "canonical", "layout", layout, works)
        require(self.stride is None, "stride", self.stride, "arrays have no chunk, use None")
        taken = self.shape(problem).shared_bytes
        works = f"it is {taken:,} bytes of shared memory, over {MAX_SHARED_BYTES:,}"
        require(taken <= MAX_SHARED_BYTES, "n", problem.n, works)

    def shape(self, problem: Problem) -> WholeShape:
        """How a matrix is spread over threads and shared memory."""
        return WholeShape(problem.n, self.warps, problem.dtype)

    def method(self, operation: Operation) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (self.family, f"w{self.warps}")

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"b{self.blocks}", *super().details(layout))
