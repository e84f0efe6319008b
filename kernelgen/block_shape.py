"""How the block family spreads matrices over the threads and the shared memory of a block."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from kernelgen.targets import ELEMENT_BYTES

WARP = 32
# What one instruction moves between registers and shared memory, and what its banks serve at a time.
PIECE_BYTES = 16
BANKS_BYTES = 128
# What guards a panel of the pipeline: its diagonal tile is factored, all of it is there, all of it has been used.
BARRIERS = ("READY", "FULL", "EMPTY")
BARRIER_BYTES, COUNT_BYTES = 8, 4


@dataclass(frozen=True)
class BlockShape:
    """`lanes` matrices of order `n`, in tiles of order `nb`: one thread to each tile of a lower triangle and lane.

    In shared memory a tile is columns of pieces of 16 bytes, the lanes of a piece side by side. Without a `pipeline`
    there is room for one column of tiles of every lane, with one for that many lower triangles of tiles, the barriers
    of their columns, and the elements of the last `early` columns.
    """

    n: int
    nb: int
    lanes: int
    dtype: str
    pipeline: int = 0
    early: int = 0

    @property
    def side(self) -> int:
        """Tiles in a column of the matrix."""
        return -(-self.n // self.nb)

    @property
    def corner(self) -> int:
        """Rows of the matrix in the last row of tiles."""
        return self.n - (self.side - 1) * self.nb

    @property
    def tiles(self) -> int:
        """Tiles of one lower triangle."""
        return self.side * (self.side + 1) // 2

    @property
    def threads(self) -> int:
        """Those of a block: whole warps."""
        return -(-self.tiles * self.lanes // WARP) * WARP

    @property
    def width(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.dtype]

    @property
    def pieces(self) -> int:
        """Pieces of one column of a tile; the last may hold more than the column."""
        return -(-self.nb // self.width)

    @property
    def tile_pieces(self) -> int:
        """Pieces from one tile of a lane to the next.

        Neighbouring threads read the same piece of one tile and, where the lanes are no multiple of what the banks
        serve at a time, of the tiles below it: the distance between those spreads them over the banks.
        """
        served = BANKS_BYTES // PIECE_BYTES
        together = served // gcd(served, self.lanes)
        least = self.nb * self.pieces
        return least + (1 - least) % together

    @property
    def panel_pieces(self) -> int:
        """Pieces of all tiles in shared memory, of every matrix."""
        tiles = self.pipeline * self.tiles or self.side
        return tiles * self.tile_pieces * self.lanes

    @property
    def barriers(self) -> int:
        """Those of the pipeline: three to each column of tiles."""
        return len(BARRIERS) * self.side * self.pipeline

    @property
    def early_threads(self) -> int:
        """Those that have a tile of the last `early` columns."""
        return self.early * (self.early + 1) // 2 * self.lanes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: tiles; the pipeline's barriers, and the elements that are fetched early;
        without a pipeline, the number of good pivots of each matrix.
        """
        counts = 0 if self.pipeline else self.lanes * COUNT_BYTES
        fetched = self.early_threads * self.nb**2 * ELEMENT_BYTES[self.dtype]
        return self.panel_pieces * PIECE_BYTES + self.barriers * BARRIER_BYTES + fetched + counts
