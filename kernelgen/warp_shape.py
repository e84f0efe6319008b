"""How the warp family spreads matrices over warps, registers and shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.gpu import SCHEDULERS, WARP

# Order of a tile of tensor cores' results, and of a block of its rows.
TILE, BLOCK = 8, 16
# The lanes of a matrix's panel in shared memory begin at other banks than those of its neighbours.
_SPREAD = 4


@dataclass(frozen=True)
class Tile:
    """Tile column `column` of the rows of block `block`, 16 by 8, the warp's tile number `index`."""

    block: int
    column: int
    index: int


@dataclass(frozen=True)
class WarpShape:
    """`matrices` of order `n` to a team of `warps`, `teams` to a block of threads.

    A lower triangle is tiles of 16 rows and 8 columns, those with an element of it, in the registers of the team:
    four elements of a tile to a lane. The blocks of rows go to the warps in turn, to and fro, so that all have as
    many tiles. Panels, one column of tiles, go through shared memory.
    """

    n: int
    matrices: int
    warps: int
    teams: int

    @property
    def side(self) -> int:
        """Tiles in a row of the matrix, and groups of eight in its rows."""
        return -(-self.n // TILE)

    @property
    def blocks(self) -> int:
        """Blocks of 16 rows."""
        return -(-self.n // BLOCK)

    def rows(self, warp: int) -> tuple[int, ...]:
        """The blocks of rows of a warp, from the last one on."""
        turns = range(-(-self.blocks // self.warps))
        places = (turn * self.warps + (self.warps - 1 - warp if turn % 2 else warp) for turn in turns)
        return tuple(self.blocks - 1 - place for place in places if place < self.blocks)

    def tiles(self, warp: int) -> tuple[Tile, ...]:
        """The tiles of a warp."""
        places = [(block, column) for block in self.rows(warp) for column in range(min(2 * block + 2, self.side))]
        return tuple(Tile(block, column, index) for index, (block, column) in enumerate(places))

    @property
    def most_tiles(self) -> int:
        """Those of the warp that has most."""
        return max(len(self.tiles(warp)) for warp in range(self.warps))

    @property
    def threads(self) -> int:
        """Those of a block."""
        return WARP * self.warps * self.teams

    @property
    def turns(self) -> bool:
        """Whether half of a block's teams read their matrices after the other half: with two to a scheduler."""
        return self.teams == 2 * SCHEDULERS

    @property
    def solvers(self) -> int:
        """Threads that solve for the rows of one matrix."""
        return WARP * self.warps // self.matrices

    @property
    def slots(self) -> int:
        """Rows of the first panel to a thread."""
        return -(-TILE * self.side // self.solvers)

    @property
    def panel(self) -> int:
        """Scalars of the panel of one matrix."""
        return BLOCK * self.blocks * TILE + _SPREAD

    @property
    def panels(self) -> int:
        """Panels of one matrix: with several warps the next one is written while others still read the last."""
        return 1 if self.warps == 1 else 2

    @property
    def declared_bytes(self) -> int:
        """Shared memory of a block but for its stages: panels, and the diagonal tiles that canonical ones have."""
        return 4 * self.teams * self.matrices * (self.panels * self.panel + TILE * TILE)

    @property
    def folds(self) -> int:
        """Groups of eight rows that share their lines of the stage with another group."""
        return -(-self.side // 2)

    @property
    def line(self) -> int:
        """Scalars from one line of the stage to the next: of eight lines, the same columns are in different banks."""
        return TILE * (2 * self.folds + 1) + _SPREAD

    def group(self, number: int) -> int:
        """Where the first of eight rows begins in the stage: the longest group shares its lines with the shortest."""
        if number < self.folds:
            return TILE * self.line * number
        partner = 2 * self.folds - 1 - number
        return TILE * self.line * partner + TILE * (partner + 1)

    @property
    def stage(self) -> int:
        """Scalars of the stage of one matrix, a triangle by rows."""
        return TILE * self.folds * self.line + _SPREAD
