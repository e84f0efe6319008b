"""How the block family spreads matrices over the threads and the shared memory of a block."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.targets import ELEMENT_BYTES

WARP = 32
# What one instruction moves between registers and shared memory, and what its banks serve at a time.
PIECE_BYTES = 16
BANKS_BYTES = 128


@dataclass(frozen=True)
class BlockShape:
    """`lanes` matrices of order `n`, in tiles of order `nb`: one thread to each tile of a lower triangle and lane.

    In shared memory a tile is columns of pieces of 16 bytes, the lanes of a piece side by side. There is room for one
    tile column of every lane.
    """

    n: int
    nb: int
    lanes: int
    dtype: str

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

        Neighbouring threads read the same piece of one tile and, where the lanes are fewer than the banks serve at
        a time, of the tiles below it: the distance between those spreads them over the banks.
        """
        together = max(1, BANKS_BYTES // PIECE_BYTES // self.lanes)
        least = self.nb * self.pieces
        return least + (1 - least) % together

    @property
    def panel_pieces(self) -> int:
        """Pieces of one column of tiles of every matrix."""
        return self.side * self.tile_pieces * self.lanes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: the column of tiles and, of each matrix, the number of good pivots."""
        return self.panel_pieces * PIECE_BYTES + 4 * self.lanes
