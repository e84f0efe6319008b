"""How the strip family spreads four matrices over the warps and the shared memory of a block."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from kernelgen.gpu import PIECE_BYTES, WARP

# Order of a tile, and the matrices of a group: an element of all four is one piece of 16 bytes.
TILE, GROUP = 16, 4
BARRIER_BYTES = 8
# Pieces of a tile in shared memory, of all matrices: each begins at other banks than the one before it.
TILE_PIECES = GROUP * (TILE * TILE // 4 + 1)
# Pieces of a diagonal tile's second factor, of all matrices, apart in the same way.
FACTOR_PIECES = GROUP * (TILE + 1)
# Pieces of a tile as it comes from memory.
STAGED_PIECES = TILE * TILE
# What a warp does with a tile besides its updates takes as long as so many of those.
_FIXED_UPDATES = 3


@dataclass(frozen=True)
class StripShape:
    """Four matrices of order `n` in tiles of 16 by 16, a strip to each column of them, on at most `warps` warps.

    A matrix that is no whole number of tiles has rows and columns of the identity before its own. In shared memory
    there is room for every tile, a second time for those of the first `ahead` strips, and for the elements of the
    last `early` ones, which are fetched early.
    """

    n: int
    warps: int
    ahead: int
    early: int

    @property
    def side(self) -> int:
        """Tiles in a column of the matrix: as many as there are strips."""
        return -(-self.n // TILE)

    @property
    def pad(self) -> int:
        """Rows of the identity before those of the matrix."""
        return self.side * TILE - self.n

    def first_tile(self, strip: int) -> int:
        """The number of a strip's diagonal tile: as many as those before it have."""
        return strip * self.side - strip * (strip - 1) // 2

    @property
    def tiles(self) -> int:
        """Tiles of one lower triangle."""
        return self.first_tile(self.side)

    @property
    def strip_warps(self) -> tuple[int, ...]:
        """The warps of each strip: one to a tile or, where there are fewer, to several, one after the other.

        Of the strips that could do with one warp less it is taken from the one whose warps are done first then.
        """
        warps = [self.side - strip for strip in range(self.side)]

        def time_with_one_less(strip: int) -> int:
            turns = -(-(self.side - strip) // (warps[strip] - 1))
            return turns * (strip + _FIXED_UPDATES)

        while sum(warps) > max(self.warps, self.side):
            spared = min((strip for strip in range(self.side) if warps[strip] > 1), key=time_with_one_less)
            warps[spared] -= 1
        return tuple(warps)

    @property
    def first_warps(self) -> tuple[int, ...]:
        """The first warp of each strip, and as many as there are."""
        return (0, *accumulate(self.strip_warps))

    @property
    def threads(self) -> int:
        """Those of a block."""
        return WARP * self.first_warps[-1]

    @property
    def places(self) -> int:
        """Tiles that shared memory has room for."""
        return self.tiles + self.first_tile(self.ahead)

    @property
    def panel_pieces(self) -> int:
        """Pieces of the finished tiles, and of the factors of diagonal ones."""
        return self.places * TILE_PIECES + (self.side + self.ahead) * FACTOR_PIECES

    @property
    def turn_barriers(self) -> int:
        """One to each tile, three to each strip, and one more where pieces would not follow whole."""
        barriers = self.tiles + 3 * self.side
        return barriers + barriers % 2

    @property
    def barriers(self) -> int:
        """Those of both places of a tile, if any has two."""
        return self.turn_barriers * (2 if self.ahead else 1)

    @property
    def staged_tiles(self) -> int:
        """Those that are fetched early."""
        return self.tiles - self.first_tile(self.side - self.early)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        pieces = self.panel_pieces + self.staged_tiles * STAGED_PIECES
        return pieces * PIECE_BYTES + self.barriers * BARRIER_BYTES
