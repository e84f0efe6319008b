"""How the block family spreads matrices over the threads and the shared memory of a block."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from kernelgen.gpu import BANKS_BYTES, PIECE_BYTES, WARP
from kernelgen.targets import ELEMENT_BYTES

# What guards a panel of the pipeline: its diagonal tile is factored, all of it is there, all of it has been used.
BARRIERS = ("READY", "FULL", "EMPTY")
BARRIER_BYTES, COUNT_BYTES = 8, 4


@dataclass(frozen=True)
class BlockShape:
    """`lanes` matrices of order `n`, in tiles of order `nb`: one thread to each tile of a lower triangle and lane.

    A matrix that is no whole number of tiles has rows and columns of the identity before its own. In shared memory a
    tile is columns of pieces of 16 bytes, the lanes of a piece side by side, and then what pieces leave over of them.
    Without a `pipeline` there is room for one column of tiles of every lane, with one for that many lower triangles
    of tiles, the barriers of their columns, and the elements of the last `early` columns. After the warps that these
    tiles make come `spare` ones, which have every second group of as many last ones; the first `fold` ones have the
    tiles of the next as many too, which are no warps of their own then.
    """

    n: int
    nb: int
    lanes: int
    dtype: str
    pipeline: int = 0
    early: int = 0
    spare: int = 0
    fold: int = 0

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
        """As many as a group has tiles: whole warps."""
        return -(-self.tiles * self.lanes // WARP) * WARP

    @property
    def relieved(self) -> int:
        """The first of the threads that the spare warps take turns with."""
        return self.working_threads - self.spare * WARP

    @property
    def threads(self) -> int:
        """Those of a block."""
        return self.working_threads + (self.spare - self.fold) * WARP

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
        tiles = self.pipeline * self.tiles or self.side
        return tiles * self.tile_pieces * self.lanes

    @property
    def barriers(self) -> int:
        """Those of the pipeline: three to each column of tiles, and one more where whole pieces are to follow.

        Who waits at a barrier must see each of its phases: those who have every second group have barriers for it.
        """
        barriers = len(BARRIERS) * self.side * self.pipeline * (2 if self.spare else 1)
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
        """Those that have a tile of the last `early` columns, and no spare warp to take turns with."""
        first = self.tiles * self.lanes - self.early * (self.early + 1) // 2 * self.lanes
        return max(min(self.tiles * self.lanes, self.relieved) - first, 0)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: tiles; the pipeline's barriers, and the elements that are fetched early;
        without a pipeline, the number of good pivots of each matrix.
        """
        counts = 0 if self.pipeline else self.lanes * COUNT_BYTES
        fetched = self.early_threads * self.nb**2 * ELEMENT_BYTES[self.dtype]
        return self.panel_pieces * PIECE_BYTES + self.barriers * BARRIER_BYTES + fetched + counts
