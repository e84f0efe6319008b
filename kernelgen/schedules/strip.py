"""The strip family: four matrices to a block, whose warps have tiles of a strip, a column of them."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from itertools import accumulate
from typing import Any, ClassVar

from kernelgen.gpu import (
    MAX_BLOCK_THREADS,
    MAX_SHARED_BYTES,
    PIECE_BYTES,
    WARP,
)
from kernelgen.operations import Operation
from kernelgen.problem import Problem
from kernelgen.refusals import require
from kernelgen.schedules.axes import (
    BaseSchedule,
    number,
    resident_blocks,
    switch,
)
from kernelgen.targets import Target

# Order of a tile, and the matrices of a group: an element of all four is one piece of 16 bytes.
TILE, GROUP = 16, 4
# Columns that are factored, solved for and multiplied at a time.
HALF = TILE // 2
BARRIER_BYTES, SCALAR_BYTES = 8, 4
# Right-hand sides of a group that have room: that which is solved for, and the next one.
COLUMNS = 2
# With as many as there are turns a warp has the same barriers in every group.
MAX_SOLVERS = 4
# Pieces of a tile in shared memory, of all matrices: each begins at other banks than the one before it.
TILE_PIECES = GROUP * (TILE * TILE // 4 + 1)
# Pieces of a diagonal tile's second factor, of all matrices, apart in the same way.
FACTOR_PIECES = GROUP * (TILE + 1)
# Groups of matrices that have barriers of their own. A tile's warp had one of at most two groups before, and waited
# for room until the place's last user, of one group or two before that, was done: so groups that are four apart
# follow each other at a barrier, and none sees a phase of another one. Not with an odd number: odd and even groups
# have places of their own, and may drift apart.
TURNS = 4
# With three places groups that are three apart share one: as many turns as make the same of two steps and of three.
TURNS_OF_THREE = 6
# What a warp does with a tile besides its updates takes about as long as this many updates, and with half of one.
_FIXED_UPDATES, _FIXED_OF_HALF = 2.25, 2
# The largest matrices have as many.
MAX_STRIPS = 8


@dataclass(frozen=True)
class StripShape:
    """Four matrices of order `n` in tiles of 16 by 16, a strip to each column of them, on at most `warps` warps.

    A matrix that is no whole number of tiles has rows and columns of the identity before its own. In shared memory
    there is room for every tile, a second time for those of the first `ahead` strips, and a third time for those of
    the first `third` ones; a place is free for the next group's tiles strip by strip, or `singly`. `solvers` more
    warps have right-hand sides, which are in shared memory behind barriers.
    """

    n: int
    warps: int
    ahead: int
    solvers: int = 0
    third: int = 0
    singly: bool = False

    @property
    def side(self) -> int:
        """Tiles in a column of the matrix: as many as there are strips."""
        return -(-self.n // TILE)

    @property
    def pad(self) -> int:
        """Rows of the identity before those of the matrix."""
        return self.side * TILE - self.n

    @property
    def halved(self) -> bool:
        """Whether the first half of the first strip is nothing but padding, and left out."""
        return self.pad >= HALF

    def first_tile(self, strip: int) -> int:
        """The number of a strip's diagonal tile: as many as those before it have."""
        return strip * self.side - strip * (strip - 1) // 2

    @property
    def parts(self) -> int:
        """Parts in which a tile is handed over to the strips on its right: two halves, or all of it at once.

        By halves they begin sooner, but wait twice for each update. That pays where half of the first strip is
        padding, and costs more than it gains elsewhere (docs/results-changes.md).
        """
        return 2 if self.halved else 1

    @property
    def tiles(self) -> int:
        """Tiles of one lower triangle."""
        return self.first_tile(self.side)

    @property
    def strip_warps(self) -> tuple[int, ...]:
        """The warps of each strip, which take turns with its tiles, from one group of matrices to the next as well.

        After one each they go one by one to the strip whose warps have most to do, the last of equals, as long as
        each has a tile of every second group.
        """
        warps = [1] * self.side

        def work(strip: int) -> tuple[float, int]:
            fixed = _FIXED_OF_HALF if self.halved and strip == 0 else _FIXED_UPDATES
            return (self.side - strip) * (strip + fixed) / warps[strip], strip

        for _ in range(self.side, min(self.warps, 2 * self.tiles)):
            strips = [strip for strip in range(self.side) if warps[strip] < 2 * (self.side - strip)]
            warps[max(strips, key=work)] += 1
        return tuple(warps)

    @property
    def first_warps(self) -> tuple[int, ...]:
        """The first warp of each strip, and as many as there are."""
        return (0, *accumulate(self.strip_warps))

    @property
    def working_warps(self) -> int:
        """Warps of a block that have tiles."""
        return self.first_warps[-1]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * (self.working_warps + self.solvers)

    @property
    def column_scalars(self) -> int:
        """Scalars from one matrix's right-hand side to the next one's: rows of the four are in different banks."""
        return self.side * TILE + HALF

    @property
    def places(self) -> int:
        """Tiles that shared memory has room for."""
        return self.tiles + self.first_tile(self.ahead) + self.first_tile(self.third)

    @property
    def panel_pieces(self) -> int:
        """Pieces of the finished tiles, and of the factors of diagonal ones."""
        return self.places * TILE_PIECES + (self.side + self.ahead + self.third) * FACTOR_PIECES

    @property
    def turns(self) -> int:
        """Groups of matrices that have barriers of their own."""
        return TURNS_OF_THREE if self.third else TURNS

    @property
    def turn_barriers(self) -> int:
        """One to each part of a tile, two to each strip, and one to each strip's place or to each tile's."""
        return self.parts * self.tiles + 2 * self.side + (self.tiles if self.singly else self.side)

    @property
    def barriers(self) -> int:
        """Barriers of all groups that have some of their own."""
        return self.turn_barriers * self.turns

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        columns = COLUMNS * self.solvers * GROUP * self.column_scalars * SCALAR_BYTES
        return self.panel_pieces * PIECE_BYTES + self.barriers * BARRIER_BYTES + columns


@dataclass(frozen=True)
class StripSchedule(BaseSchedule):
    """Four matrices to a block, warps with tiles of 16 by 16 of a strip, a column of them, for float32.

    Strips of successive groups of matrices follow each other through a block, as columns of tiles do in the block
    family's pipeline, and updates are products of tensor cores, three of 11 bits for one of 24. A block has at most
    `warps` warps, and those of a strip take turns with its tiles. The first `ahead` strips have room for two groups'
    tiles, by which they may be ahead of the last ones, and the first `third` of these for three groups'. A strip's
    tiles make room for the next group's all at once, or `singly`. `blocks` are those of the block family's pipeline.
    The matrices of a group are neighbours in a chunk, `stride`, a multiple of four.

    What solves too has `rhs` further warps (None is 1), each of which solves for every `rhs`-th group, one right-hand
    side after the other, with each strip as soon as it is there. A place is free once the backward solve has left it.
    As there is no factor to write, matrices may be arrays as well.
    """

    family: ClassVar[str] = "strip"
    operations: ClassVar[tuple[str, ...]] = ("potrf", "posv")

    warps: int = number(1, MAX_BLOCK_THREADS // WARP, MISSING, "warps of a block", only="gpu")
    ahead: int = number(0, MAX_STRIPS, 0, "strips with room for two groups", only="gpu")
    third: int = number(0, MAX_STRIPS, 0, "strips with room for three groups", only="gpu")
    blocks: int | None = resident_blocks()
    rhs: int | None = number(1, MAX_SOLVERS, None, "warps that solve; the groups go to them in turn", only="gpu")
    singly: bool | None = switch("whether each tile makes room when it has been used, not its strip", only="gpu")

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        rhs = (self.rhs or 1) if problem.operation.has_columns else self.rhs
        singly = self.singly or None
        return {"blocks": self.blocks or 1, "cache": self.cache or "shared", "rhs": rhs, "singly": singly}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        works = "the tensor cores' blocks in shared memory are of 32-bit scalars, use float32 or another family"
        require(problem.dtype == "float32", "dtype", problem.dtype, works)
        arrays = layout == "canonical" and problem.operation.forgets
        works = "a block has neighbouring matrices of a chunk, use 'chunked' or another family"
        require(layout == "chunked" or arrays, "layout", layout, works)
        works = f"a block has {GROUP} neighbouring matrices of a chunk, use {GROUP}, or another multiple of it"
        require(arrays or (self.stride is not None and self.stride % GROUP == 0), "stride", self.stride, works)
        works = f"{problem.op} has no right-hand sides, use None"
        require(problem.operation.has_columns or self.rhs is None, "rhs", self.rhs, works)
        works = "who solves needs whole strips, use None"
        require(not (self.singly and problem.operation.has_columns), "singly", self.singly, works)
        shape = self.shape(problem)
        works = f"n={problem.n} has {shape.side} strips, use from as many to {MAX_BLOCK_THREADS // WARP}"
        require(self.warps >= shape.side, "warps", self.warps, works)
        works = f"the last of n={problem.n}'s {shape.side} strips has none to be ahead of, use less"
        require(self.ahead < shape.side, "ahead", self.ahead, works)
        works = f"{self.ahead} strips have room for two groups, use no more"
        require(self.third <= self.ahead, "third", self.third, works)
        works = (
            f"with those that solve they are {shape.threads // WARP}, over the {MAX_BLOCK_THREADS // WARP} of a block"
        )
        require(shape.threads <= MAX_BLOCK_THREADS, "warps", self.warps, works)
        works = f"n={problem.n} is {shape.shared_bytes:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a "
        works += "block; use less ahead" + (", or fewer of three" if self.third else "")
        require(shape.shared_bytes <= MAX_SHARED_BYTES, "ahead", self.ahead, works)

    def shape(self, problem: Problem) -> StripShape:
        """How the matrices of a group are spread over warps and shared memory."""
        return StripShape(problem.n, self.warps, self.ahead, self.rhs or 0, self.third, bool(self.singly))

    def method(self, operation: Operation) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        return (
            self.family,
            f"w{self.warps}",
            *[f"ahead{self.ahead}"] * bool(self.ahead),
            *[f"third{self.third}"] * bool(self.third),
            *["singly"] * bool(self.singly),
            *[f"rhs{self.rhs}"] * ((self.rhs or 1) > 1),
        )

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"b{self.blocks}", *super().details(layout))
