"""The whole family: a block of warps for one matrix, which is in shared memory, left looking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
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
# Right-hand sides are rows of one more tile.
MAX_RHS = TILE
# Rows of the identity that may fill the last tile, and the largest order for which it was measured that they pay.
MAX_BORDER: Mapping[str, int] = MappingProxyType({"float32": 3, "float64": 0})
MAX_BORDERED = 128
# From this order of float64 on three warps or more have registers for rows by fours, in as many blocks as others.
MIN_BY_FOURS = 81


@dataclass(frozen=True)
class WholeShape:
    """One matrix of order `n` to a block of `warps`: panels of eight columns, each from its diagonal tile on down.

    As many right-hand sides as are solved for at a time are further rows below the matrix.
    """

    n: int
    warps: int
    dtype: str
    rhs: int = 0

    @property
    def side(self) -> int:
        """Panels of the matrix."""
        return -(-self.n // TILE)

    @property
    def border(self) -> int:
        """Rows of the identity below the matrix, which fill the last tile: few, where nothing is solved."""
        missing = -self.n % TILE
        return missing if missing <= MAX_BORDER[self.dtype] and self.n <= MAX_BORDERED and not self.rhs else 0

    @property
    def pieces(self) -> bool:
        """Whether rows of an array come and go by pieces of 16 bytes; one warp has float64 by fours sooner."""
        alone = self.warps == 1 and self.n <= MAX_BORDERED and not self.rhs
        return self.n % (4 if self.dtype == "float32" or alone else 2) == 0

    @property
    def by_fours(self) -> bool:
        """Whether four rows that come and go by elements do so at a time, for which there must be registers."""
        few = self.dtype == "float32" or self.warps == 1 or (self.warps > 2 and self.n >= MIN_BY_FOURS)
        return few and self.n <= MAX_BORDERED and not (self.rhs or self.pieces)

    @property
    def rows(self) -> int:
        """Rows of the first panel."""
        return self.n + self.border + self.rhs

    @property
    def tiles(self) -> int:
        """Tiles of the first panel."""
        return -(-self.rows // TILE)

    @property
    def blocks(self) -> int:
        """Blocks of 16 rows of the first panel, but for that with the diagonal tile."""
        return (self.tiles + 1) // 2 - 1

    @property
    def head(self) -> int:
        """Elements before the panels: a diagonal tile's factor, and reciprocals; of solves those of all panels."""
        return TILE * (TILE + (self.side if self.rhs else 1))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def slots(self) -> int:
        """Rows of the first panel to a thread, but for those of the first two tiles."""
        return -(-max(self.rows - 2 * TILE, 1) // self.threads)

    @property
    def pitch(self) -> int:
        """Elements from a row of the first panel to that of the second: neighbours in a row meet in no bank."""
        return TILE * (self.rows | 1)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: what is before the panels, and these.

        Of these the last one comes first; the first one has room for whole tiles.
        """
        others = (self.side - 1) * (self.pitch - TILE * TILE // 2 * self.side)
        return (self.head + others + TILE * TILE * self.tiles) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class WholeSchedule(BaseSchedule):
    """A block of warps for one matrix, all of it in shared memory, for arrays.

    Left looking: a panel of eight columns loses the products of all before it, by tensor cores, when its turn comes.
    The first warp factors its diagonal tile meanwhile; then every thread has a row, which it solves for. `blocks` are
    those of the block family. What solves too has `rhs` right-hand sides (None is 1) as rows below the matrix at a
    time, and the factor in shared memory until they are solved for; it comes there if it is given.
    """

    family: ClassVar[str] = "whole"
    larger: ClassVar[bool] = True
    operations: ClassVar[tuple[str, ...]] = ("potrf", "posv", "potrs")

    warps: int = number(1, MAX_WARPS, 4, "warps of a block", only="gpu")
    blocks: int | None = resident_blocks()
    rhs: int | None = number(1, MAX_RHS, None, "right-hand sides solved for at a time", only="gpu")

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        rhs = (self.rhs or 1) if problem.operation.has_columns else self.rhs
        return {"blocks": self.blocks or 1, "cache": self.cache or "shared", "rhs": rhs}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        works = "its matrices are arrays, use 'canonical' or another family"
        require(layout == "canonical", "layout", layout, works)
        require(self.stride is None, "stride", self.stride, "arrays have no chunk, use None")
        works = f"{problem.op} has no right-hand sides, use None"
        require(problem.operation.has_columns or self.rhs is None, "rhs", self.rhs, works)
        taken = self.shape(problem).shared_bytes
        works = f"it is {taken:,} bytes of shared memory, over {MAX_SHARED_BYTES:,}"
        require(taken <= MAX_SHARED_BYTES, "n", problem.n, works)

    def shape(self, problem: Problem) -> WholeShape:
        """How a matrix is spread over threads and shared memory."""
        return WholeShape(problem.n, self.warps, problem.dtype, self.rhs or 0)

    def method(self, operation: Operation) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (self.family, f"w{self.warps}", *[f"rhs{self.rhs}"] * ((self.rhs or 1) > 1))

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"b{self.blocks}", *super().details(layout))
