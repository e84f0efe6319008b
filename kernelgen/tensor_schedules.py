"""How kernels factor whose updates tensor cores take: the families warp and strip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from kernelgen.gpu import MAX_BLOCK_THREADS, MAX_DECLARED_BYTES, MAX_SHARED_BYTES, WARP
from kernelgen.refusals import keep_integer, one_of, require
from kernelgen.schedule_checks import (
    MAX_RESIDENT_BLOCKS,
    UNROLLS,
    check_common,
    check_gpu,
    check_stride,
    memory_words,
)
from kernelgen.strip_shape import GROUP, StripShape
from kernelgen.targets import Target
from kernelgen.warp_shape import WarpShape

if TYPE_CHECKING:
    from kernelgen.spec import Problem

UPDATES = ("tensor", "fma")
MAX_TEAM_MATRICES, MAX_TEAM_WARPS, MAX_TEAMS = 4, 2, 8
# Of the 255 registers of a thread, those that can be elements of its matrices: the rest has the work of a panel.
MAX_TILE_REGISTERS = 176
# The largest matrices have as many.
MAX_STRIPS = 8


@dataclass(frozen=True)
class WarpSchedule:
    """A warp or two for a few whole matrices, their triangles in its registers, for float32.

    `matrices` and `warps` are those of a team, `teams` how many teams make a block of threads: None is two, or one of
    two warps; of eight, four read their matrices after the others, so that some compute while others wait. `update`
    says what takes a panel's part from the tiles to its right: "tensor", the tensor cores, three products of 11 bits
    for one of 24, where the math is "fast", or "fma", multiply-adds; None is the first where it can be. `unroll` is
    "full" for straight-line code, or "tiles" for a loop over the panels; `math`, `blocks`, `cache`, `stride` and
    `pdl` are those of the block family.
    """

    family: ClassVar[str] = "warp"

    matrices: int = 1
    warps: int = 1
    teams: int | None = None
    update: str | None = None
    unroll: str = "tiles"
    math: str = "ieee"
    blocks: int | None = None
    stride: int | None = None
    cache: str | None = None
    pdl: bool | None = None

    def __post_init__(self) -> None:
        for name, most in (("matrices", MAX_TEAM_MATRICES), ("warps", MAX_TEAM_WARPS), ("teams", MAX_TEAMS)):
            number = getattr(self, name)
            if number is not None or name != "teams":
                keep_integer(self, name, 1, most)
                require(number & (number - 1) == 0, name, number, "use a power of two")
        if self.blocks is not None:
            keep_integer(self, "blocks", 1, MAX_RESIDENT_BLOCKS)
        one_of("unroll", self.unroll, UNROLLS)
        check_common(self)
        works = "a team of several warps has one matrix, and a block of threads to itself; use 1"
        require(self.warps == 1 or self.matrices == 1, "matrices", self.matrices, works)
        require(self.warps == 1 or self.teams in (None, 1), "teams", self.teams, works)
        if self.update is not None:
            one_of("update", self.update, UPDATES)
            works = "tensor cores round more than math='ieee' may, use 'fma'"
            require(self.math == "fast" or self.update == "fma", "update", self.update, works)

    def settled(self, target: Target) -> WarpSchedule:
        """The schedule with its defaults filled in; refuses every target but a GPU."""
        check_gpu(self.family, target)
        update = self.update or ("tensor" if self.math == "fast" else "fma")
        teams, cache = self.teams or (2 if self.warps == 1 else 1), self.cache or "shared"
        return replace(self, teams=teams, update=update, blocks=self.blocks or 1, cache=cache, pdl=self.pdl or None)

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        works = "the tensor cores' blocks in shared memory are of 32-bit scalars, use float32 or another family"
        require(problem.dtype == "float32", "dtype", problem.dtype, works)
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
        return (self.family, f"m{self.matrices}", f"w{self.warps}", str(self.update), self.unroll, self.math)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"t{self.teams}", f"b{self.blocks}", *memory_words(self))


@dataclass(frozen=True)
class StripSchedule:
    """Four matrices to a block, warps with tiles of 16 by 16 of a strip, a column of them, for float32.

    Strips of successive groups of matrices follow each other through a block, as columns of tiles do in the block
    family's pipeline, and updates are products of tensor cores, three of 11 bits for one of 24: `math` is "fast". A
    block has at most `warps` warps, and those of a strip take turns with its tiles. So many strips as `ahead` says
    have room for two groups' tiles, by which they may be ahead of the last ones. `blocks`, `cache` and `pdl` are
    those of the block family's pipeline. The matrices of a group are neighbours in a chunk, `stride`, a multiple of
    four.
    """

    family: ClassVar[str] = "strip"

    warps: int
    ahead: int = 0
    math: str = "fast"
    blocks: int | None = None
    stride: int | None = None
    cache: str | None = None
    pdl: bool | None = None

    def __post_init__(self) -> None:
        keep_integer(self, "warps", 1, MAX_BLOCK_THREADS // WARP)
        keep_integer(self, "ahead", 0, MAX_STRIPS)
        if self.blocks is not None:
            keep_integer(self, "blocks", 1, MAX_RESIDENT_BLOCKS)
        check_common(self)
        works = "tensor cores round more than math='ieee' may, use 'fast' or another family"
        require(self.math == "fast", "math", self.math, works)

    def settled(self, target: Target) -> StripSchedule:
        """The schedule with its defaults filled in; refuses every target but a GPU."""
        check_gpu(self.family, target)
        return replace(self, blocks=self.blocks or 1, cache=self.cache or "shared", pdl=self.pdl or None)

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        works = "the tensor cores' blocks in shared memory are of 32-bit scalars, use float32 or another family"
        require(problem.dtype == "float32", "dtype", problem.dtype, works)
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
        return (self.family, f"w{self.warps}", *[f"ahead{self.ahead}"] * bool(self.ahead), self.math)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"b{self.blocks}", *memory_words(self))
