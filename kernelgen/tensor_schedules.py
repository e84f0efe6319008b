"""How kernels factor whose updates tensor cores take: the families warp and strip."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kernelgen.axes import UNROLLS, UPDATES, BaseSchedule, check_stride, number, resident_blocks, word
from kernelgen.gpu import MAX_BLOCK_THREADS, MAX_DECLARED_BYTES, MAX_SHARED_BYTES, WARP
from kernelgen.refusals import require
from kernelgen.strip_shape import GROUP, StripShape
from kernelgen.targets import Target
from kernelgen.warp_shape import WarpShape

if TYPE_CHECKING:
    from kernelgen.spec import Problem

MAX_TEAM_MATRICES, MAX_TEAM_WARPS, MAX_TEAMS = 4, 2, 8
# Of the 255 registers of a thread, those that can be elements of its matrices: the rest has the work of a panel.
MAX_TILE_REGISTERS = 176
# The largest matrices have as many.
MAX_STRIPS = 8


@dataclass(frozen=True)
class WarpSchedule(BaseSchedule):
    """A warp or two for a few whole matrices, their triangles in its registers, for float32.

    `matrices` and `warps` are those of a team, `teams` how many teams make a block of threads: None is two, or one of
    two warps; of eight, four read their matrices after the others, so that some compute while others wait. `update`
    says what takes a panel's part from the tiles to its right: "tensor", the tensor cores, three products of 11 bits
    for one of 24, where the math is "fast", or "fma", multiply-adds; None is the first where it can be. `unroll` is
    "full" for straight-line code, or "tiles" for a loop over the panels; `blocks` are those of the block family.
    """

    family: ClassVar[str] = "warp"

    matrices: int = number(1, MAX_TEAM_MATRICES, 1, "matrices of a team", only="gpu")
    warps: int = number(1, MAX_TEAM_WARPS, 1, "warps of a team", only="gpu")
    teams: int | None = number(1, MAX_TEAMS, None, "teams of a block", only="gpu")
    update: str | None = word(UPDATES, None, "tensor cores, or multiply-adds", only="gpu")
    unroll: str = word(UNROLLS, "tiles", "loops over panels, or straight-line code")
    blocks: int | None = resident_blocks()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("matrices", "warps", "teams"):
            got = getattr(self, name) or 1
            require(got & (got - 1) == 0, name, got, "use a power of two")
        works = "a team of several warps has one matrix, and a block of threads to itself; use 1"
        require(self.warps == 1 or self.matrices == 1, "matrices", self.matrices, works)
        require(self.warps == 1 or self.teams in (None, 1), "teams", self.teams, works)

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        update = self.update or ("tensor" if problem.math == "fast" else "fma")
        teams, cache = self.teams or (2 if self.warps == 1 else 1), self.cache or "shared"
        return {"teams": teams, "update": update, "blocks": self.blocks or 1, "cache": cache}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        works = "the tensor cores' blocks in shared memory are of 32-bit scalars, use float32 or another family"
        require(problem.dtype == "float32", "dtype", problem.dtype, works)
        works = "tensor cores round more than math='ieee' may, use 'fma'"
        require(problem.math == "fast" or self.update == "fma", "update", self.update, works)
        check_stride(self, layout)
        registers = 4 * self.matrices * self.shape(problem).most_tiles
        field = "matrices" if self.matrices > 1 else "warps"
        works = f"n={problem.n} is {registers} registers of each thread, over {MAX_TILE_REGISTERS}; use "
        works += "fewer" if self.matrices > 1 else "more"
        require(registers <= MAX_TILE_REGISTERS, field, getattr(self, field), works)
        declared = self.shape(problem).declared_bytes
        works = f"n={problem.n} is {declared:,} bytes of shared memory, over {MAX_DECLARED_BYTES:,}; use fewer"
        require(declared <= MAX_DECLARED_BYTES, "teams", self.teams, works)

    def shape(self, problem: Problem) -> WarpShape:
        """How matrices are spread over warps, registers and shared memory."""
        return WarpShape(problem.n, self.matrices, self.warps, self.teams or 1)

    @property
    def method(self) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (self.family, f"m{self.matrices}", f"w{self.warps}", str(self.update), self.unroll)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"t{self.teams}", f"b{self.blocks}", *super().details(layout))


@dataclass(frozen=True)
class StripSchedule(BaseSchedule):
    """Four matrices to a block, warps with tiles of 16 by 16 of a strip, a column of them, for float32.

    Strips of successive groups of matrices follow each other through a block, as columns of tiles do in the block
    family's pipeline, and updates are products of tensor cores, three of 11 bits for one of 24, for math "fast". A
    block has at most `warps` warps, and those of a strip take turns with its tiles. So many strips as `ahead` says
    have room for two groups' tiles, by which they may be ahead of the last ones. `blocks` are those of the block
    family's pipeline. The matrices of a group are neighbours in a chunk, `stride`, a multiple of four.
    """

    family: ClassVar[str] = "strip"

    warps: int = number(1, MAX_BLOCK_THREADS // WARP, MISSING, "warps of a block", only="gpu")
    ahead: int = number(0, MAX_STRIPS, 0, "strips with room for two groups", only="gpu")
    blocks: int | None = resident_blocks()

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        return {"blocks": self.blocks or 1, "cache": self.cache or "shared"}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        works = "the tensor cores' blocks in shared memory are of 32-bit scalars, use float32 or another family"
        require(problem.dtype == "float32", "dtype", problem.dtype, works)
        works = "tensor cores round more than math='ieee' may, use 'fast' or another family"
        require(problem.math == "fast", "math", problem.math, works)
        works = "a block has neighbouring matrices of a chunk, use 'chunked' or another family"
        require(layout == "chunked", "layout", layout, works)
        works = f"a block has {GROUP} neighbouring matrices of a chunk, use {GROUP}, or another multiple of it"
        require(self.stride is not None and self.stride % GROUP == 0, "stride", self.stride, works)
        shape = self.shape(problem)
        works = f"n={problem.n} has {shape.side} strips, use from as many to {MAX_BLOCK_THREADS // WARP}"
        require(self.warps >= shape.side, "warps", self.warps, works)
        works = f"the last of n={problem.n}'s {shape.side} strips is for nobody, use less"
        require(self.ahead < shape.side, "ahead", self.ahead, works)
        works = f"n={problem.n} is {shape.shared_bytes:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a "
        works += "block; use less ahead"
        require(shape.shared_bytes <= MAX_SHARED_BYTES, "ahead", self.ahead, works)

    def shape(self, problem: Problem) -> StripShape:
        """How the matrices of a group are spread over warps and shared memory."""
        return StripShape(problem.n, self.warps, self.ahead)

    @property
    def method(self) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (self.family, f"w{self.warps}", *[f"ahead{self.ahead}"] * bool(self.ahead))

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"b{self.blocks}", *super().details(layout))
