"""The block family: a thread to each tile of a few matrices."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from itertools import pairwise
from math import gcd
from typing import Any, ClassVar

from kernelgen.gpu import (
    BANKS_BYTES,
    MAX_BLOCK_THREADS,
    MAX_SHARED_BYTES,
    PIECE_BYTES,
    WARP,
)
from kernelgen.operations import Operation
from kernelgen.problem import Problem
from kernelgen.refusals import require
from kernelgen.schedules.axes import (
    MAX_NB,
    BaseSchedule,
    check_tile,
    number,
    resident_blocks,
)
from kernelgen.targets import ELEMENT_BYTES, Target

# What guards a panel of the pipeline: its diagonal tile is factored, all of it is there, all of it has been used.
BARRIERS = ("READY", "FULL", "EMPTY")
# Right-hand sides of a group that have room: that which is solved for, and the next one.
COLUMNS = 2
BARRIER_BYTES, COUNT_BYTES = 8, 4
MIN_BLOCK_NB = 4
MAX_LANES = 32
MAX_PIPELINE = 4
# The smallest tiles of the largest matrices have as many columns.
MAX_EARLY = 32
MAX_SPARE = 16
MAX_RHS = 8


@dataclass(frozen=True)
class BlockShape:
    """`lanes` matrices of order `n`, in tiles of order `nb`: one thread to each tile of a lower triangle and lane.

    A matrix that is no whole number of tiles has rows and columns of the identity before its own. In shared memory a
    tile is columns of pieces of 16 bytes, the lanes of a piece side by side, and then what pieces leave over of them.
    Without a `pipeline` there is room for one column of tiles of every lane, with one for that many lower triangles
    of tiles, once more for their first `ahead` columns, the barriers of all columns, and the elements of the last
    `early` ones. After the warps that these tiles make come `spare` ones, which have every second group of as many
    last ones; the first `fold` ones have the tiles of the next as many too, which are no warps of their own then. The
    last `solvers` warps have right-hand sides, one at a time, which are in shared memory behind the tiles.
    """

    n: int
    nb: int
    lanes: int
    dtype: str
    pipeline: int = 0
    early: int = 0
    spare: int = 0
    fold: int = 0
    solvers: int = 0
    ahead: int = 0

    @property
    def side(self) -> int:
        """Tiles in a column of the matrix."""
        return -(-self.n // self.nb)

    @property
    def pad(self) -> int:
        """Rows of the identity before those of the matrix, in the first row of tiles."""
        return self.side * self.nb - self.n

    @property
    def skips_padding(self) -> bool:
        """Whether updates by the first column of tiles leave out its padding: where that is half of it, or nearly."""
        return self.side > 1 and self.pad >= self.nb // 2

    @property
    def tiles(self) -> int:
        """Tiles of one lower triangle."""
        return self.side * (self.side + 1) // 2

    @property
    def working_threads(self) -> int:
        """A thread for each tile of a group, in whole warps."""
        return -(-self.tiles * self.lanes // WARP) * WARP

    @property
    def relieved(self) -> int:
        """The first of the threads that the spare warps take turns with."""
        return self.working_threads - self.spare * WARP

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.factoring_threads + self.solvers * WARP

    @property
    def factoring_threads(self) -> int:
        """Threads of a block that have tiles."""
        return self.working_threads + (self.spare - self.fold) * WARP

    @property
    def shares(self) -> int:
        """Lanes to a matrix of a warp that solves."""
        return WARP // self.lanes

    @property
    def width(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.dtype]

    @property
    def tails(self) -> int:
        """Rows that pieces leave over, if one piece has room for those of two columns or more: else none."""
        over = self.nb % self.width
        return over if 2 * over <= self.width else 0

    @property
    def pieces(self) -> int:
        """Pieces of one column of a tile, without its tail; the last may hold more than the column."""
        return -(-(self.nb - self.tails) // self.width)

    @property
    def tile_pieces(self) -> int:
        """Pieces from one tile of a lane to the next.

        Neighbouring threads read the same piece of one tile and, where the lanes are no multiple of what the banks
        serve at a time, of the tiles below it: the distance between those spreads them over the banks.
        """
        served = BANKS_BYTES // PIECE_BYTES
        together = served // gcd(served, self.lanes)
        least = self.nb * self.pieces + (-(-self.nb // (self.width // self.tails)) if self.tails else 0)
        return least + (1 - least) % together

    @property
    def panel_pieces(self) -> int:
        """Pieces of all tiles in shared memory, of every matrix."""
        tiles = self.pipeline * self.tiles + self._first_tiles[min(self.ahead, self.side)] or self.side
        return tiles * self.tile_pieces * self.lanes

    @property
    def parts(self) -> int:
        """Pieces of a right-hand side beside a tile; the last may hold more than the tile has rows."""
        return -(-self.nb // self.width)

    @property
    def part_pieces(self) -> int:
        """Pieces from one part of a right-hand side to the next: rows of a matrix are in different banks."""
        return self.lanes + (1 - self.lanes) % (BANKS_BYTES // PIECE_BYTES)

    @property
    def column_pieces(self) -> int:
        """Pieces of the right-hand sides in shared memory, of every matrix."""
        return COLUMNS * self.solvers * self.side * self.parts * self.part_pieces

    @property
    def turns(self) -> int:
        """Groups of matrices that have barriers of their own."""
        return (self.pipeline + bool(self.ahead)) * (2 if self.spare else 1)

    @property
    def barriers(self) -> int:
        """Barriers of the pipeline: three to each column of tiles, and one more where whole pieces are to follow.

        Who waits at a barrier must see each of its phases: those who have every second group have barriers for it.
        """
        barriers = len(BARRIERS) * self.side * self.turns
        return barriers + barriers % 2 * bool(self.early)

    @property
    def awaited(self) -> int:
        """Bit k: warps with tiles of column k wait for its diagonal tile; not if that one's warp has all of them.

        Where the lanes do not divide a warp's threads a diagonal tile can be of two warps, which wait for each other.
        """
        starts = self._first_tiles
        warps = [(start * self.lanes // WARP, (end * self.lanes - 1) // WARP) for start, end in pairwise(starts)]
        return sum(1 << column for column, (first, last) in enumerate(warps) if WARP % self.lanes or last > first)

    def shared_diagonal(self, warp: int) -> bool:
        """Whether lanes of one diagonal tile are of a warp and of the one before it: these wait for each other."""
        thread = warp * WARP
        return any(tile * self.lanes < thread < (tile + 1) * self.lanes for tile in self._first_tiles)

    @property
    def _first_tiles(self) -> list[int]:
        """The diagonal tile of each column, and as many tiles as there are."""
        return [column * self.side - column * (column - 1) // 2 for column in range(self.side + 1)]

    @property
    def early_threads(self) -> int:
        """Threads that have a tile of the last `early` columns, and no spare warp to take turns with."""
        first = self.tiles * self.lanes - self.early * (self.early + 1) // 2 * self.lanes
        return max(min(self.tiles * self.lanes, self.relieved) - first, 0)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: tiles and right-hand sides; the pipeline's barriers, and what is fetched
        early; without a pipeline, the number of good pivots of each matrix.
        """
        counts = 0 if self.pipeline else self.lanes * COUNT_BYTES
        fetched = self.early_threads * self.nb**2 * ELEMENT_BYTES[self.dtype]
        pieces = self.panel_pieces + self.column_pieces
        return pieces * PIECE_BYTES + self.barriers * BARRIER_BYTES + fetched + counts


@dataclass(frozen=True)
class BlockSchedule(BaseSchedule):
    """A block of threads for a few matrices, one thread for each tile of each, which it holds in its registers.

    `nb` is the tile size, `lanes` how many matrices a block factors side by side, `blocks` how many blocks a
    multiprocessor has room for at least, which bounds the registers of a thread (None is 1).

    With a `pipeline`, from 1, columns of tiles of successive matrices follow each other through a block, each as soon
    as its operands are there: there are `blocks` blocks to a multiprocessor however many matrices there are, and room
    for the panels of `pipeline` of them, by which the first columns may be ahead of the last ones. The last warps
    have most to do: `spare` further ones take turns with as many of them. The first have least: `fold` of them do
    what as many others would, besides, so that more matrices find room. The other warps' tiles of the last `early`
    columns are fetched before those that they follow are done. Without (None and 0) all columns of a block wait for
    each other, and there are as many blocks as it takes. What solves too has a pipeline, whose panels stay until
    `rhs` further warps (None is 1) have solved with them, each for a right-hand side at a time. They begin as soon as
    the first panel is full, and take turns where there are fewer right-hand sides. The first columns' panels stay
    longest: the first `ahead` columns have room for those of one group more.
    """

    family: ClassVar[str] = "block"
    operations: ClassVar[tuple[str, ...]] = ("potrf", "posv")

    nb: int = number(MIN_BLOCK_NB, MAX_NB, MISSING, "tile size")
    lanes: int = number(1, MAX_LANES, MISSING, "matrices that a block factors side by side", only="gpu")
    blocks: int | None = resident_blocks()
    pipeline: int | None = number(0, MAX_PIPELINE, None, "groups of matrices that have panels at a time", only="gpu")
    early: int | None = number(0, MAX_EARLY, None, "columns of tiles whose next tiles are fetched early", only="gpu")
    spare: int | None = number(0, MAX_SPARE, None, "warps that take turns with the last ones", only="gpu")
    fold: int | None = number(0, MAX_SPARE, None, "first warps that do the work of two", only="gpu")
    rhs: int | None = number(1, MAX_RHS, None, "right-hand sides solved for at a time, by a warp each", only="gpu")
    ahead: int | None = number(0, MAX_EARLY, None, "columns with room for one group more", only="gpu")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("early", "spare", "fold", "ahead"):
            got = getattr(self, name)
            require(bool(self.pipeline) or not got, name, got, "only a pipeline has any, use pipeline=1")

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        zeros = {name: getattr(self, name) or 0 for name in ("pipeline", "early", "spare", "fold", "ahead")}
        rhs = (self.rhs or 1) if problem.operation.has_columns else self.rhs
        return {"blocks": self.blocks or 1, "cache": self.cache or "shared", "rhs": rhs, **zeros}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        check_tile(self, self.nb, problem, layout, MIN_BLOCK_NB)
        works = f"{problem.op} is solved with the panels of a pipeline, use 1 or more"
        require(bool(self.pipeline) or not problem.operation.forgets, "pipeline", self.pipeline, works)
        works = f"{problem.op} has no right-hand sides, use None"
        require(problem.operation.has_columns or self.rhs is None, "rhs", self.rhs, works)
        shape = self.shape(problem)
        tiles, warps = f"n={problem.n} by tiles of {self.nb} is", shape.working_threads // WARP
        works = f"{tiles} {shape.side} columns of them, use no more"
        require((self.early or 0) <= shape.side, "early", self.early, works)
        require(shape.spare < warps, "spare", self.spare, f"{tiles} {warps} warps, use fewer than those")
        works = f"{tiles} {shape.side} columns, the last of which has none to be ahead of, use fewer"
        require(shape.ahead < shape.side, "ahead", self.ahead, works)
        works = "where warps take turns all columns have as many places, use 0, or no spare warps"
        require(not (shape.ahead and shape.spare), "ahead", self.ahead, works)
        works = f"{tiles} {warps - shape.spare} warps that are not relieved, use no more than half of those"
        require(2 * shape.fold <= warps - shape.spare, "fold", self.fold, works)
        works = f"{tiles} warps {shape.fold - 1} and {shape.fold} with lanes of one diagonal tile, use another number"
        require(not shape.fold or not shape.shared_diagonal(shape.fold), "fold", self.fold, works)
        works = f"{tiles} {shape.threads:,} threads, over the {MAX_BLOCK_THREADS:,} of a block; "
        works += "use fewer lanes or a larger nb" + (", or fewer spare warps" if self.spare else "")
        require(shape.threads <= MAX_BLOCK_THREADS, "lanes", self.lanes, works)
        works = f"{tiles} {shape.shared_bytes:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a block; "
        works += "use fewer lanes" + (", a smaller pipeline or less of early" if self.pipeline else "")
        require(shape.shared_bytes <= MAX_SHARED_BYTES, "lanes", self.lanes, works)

    def shape(self, problem: Problem) -> BlockShape:
        """How a block's matrices are spread over its threads and its shared memory."""
        numbers = (self.pipeline or 0, self.early or 0, self.spare or 0, self.fold or 0)
        return BlockShape(problem.n, self.nb, self.lanes, problem.dtype, *numbers, self.rhs or 0, self.ahead or 0)

    def method(self, operation: Operation) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        parts = [self.family, f"nb{self.nb}", f"lanes{self.lanes}"]
        parts += [f"pipe{self.pipeline}"] * bool(self.pipeline) + [f"early{self.early}"] * bool(self.early)
        parts += [f"ahead{self.ahead}"] * bool(self.ahead)
        parts += [f"rhs{self.rhs}"] * ((self.rhs or 1) > 1)
        parts += [f"spare{self.spare}"] * bool(self.spare) + [f"fold{self.fold}"] * bool(self.fold)
        return tuple(parts)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        return (f"b{self.blocks}", *super().details(layout))
