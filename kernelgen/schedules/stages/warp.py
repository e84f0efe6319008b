"""Room in shared memory for whole matrices of the warp family, as they are in memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from kernelgen.gpu import PIECE_BYTES, WARP
from kernelgen.targets import ELEMENT_BYTES

# Order of a tile.
TILE = 8


@dataclass(frozen=True)
class WarpImage:
    """`matrices` of order `n` of a team, one after another, moved by `turns` of instructions, a piece to each thread.

    Lines of whole pieces are an odd number of these apart, so that neighbours are in different banks. Of others the
    first one begins in a piece wherever it does so in memory.
    """

    n: int
    matrices: int
    dtype: str
    warps: int = 1

    @property
    def threads(self) -> int:
        """Threads of the team."""
        return WARP * self.warps

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.dtype]

    @property
    def lined(self) -> bool:
        """Whether rows, or columns, are whole pieces."""
        return self.n % self.piece == 0

    @property
    def pitch(self) -> int:
        """Scalars from one row, or column, to the next."""
        return (self.n // self.piece | 1) * self.piece if self.lined else self.n

    @property
    def pieces(self) -> int:
        """Pieces that have an element of the matrices, wherever these begin."""
        most = self.matrices * self.n**2 + (0 if self.lined else self.piece - 1)
        return -(-most // self.piece)

    @property
    def turns(self) -> int:
        """Instructions that move them all."""
        return -(-self.pieces // self.threads)

    @property
    def period(self) -> int:
        """Turns until a thread has a piece that is as far from the beginning of its line again."""
        line = self.n // self.piece
        return 1 if self.pitch == self.n else line // gcd(line, self.threads)

    def place(self, turn: int) -> int:
        """Scalars from where a thread's piece is in the first turn of a period to where it is in another one's."""
        pieces = turn // self.period * self.period * self.threads
        return pieces * self.piece if self.pitch == self.n else pieces // (self.n // self.piece) * self.pitch

    @property
    def scalars(self) -> int:
        """Scalars of the room; the last row of tiles may end past that of the matrix."""
        return self.matrices * self.n * self.pitch + -self.n % TILE if self.lined else self.pieces * self.piece

    def wanted(self, turn: int, *, by_rows: bool) -> tuple[int, ...]:
        """The lanes of each warp, as bits, whose pieces of a turn may have an element of a triangle."""
        first = (turn * self.threads + WARP * warp for warp in range(self.warps))
        return tuple(sum(self._wanted(piece + lane, by_rows) << lane for lane in range(WARP)) for piece in first)

    def _wanted(self, piece: int, by_rows: bool) -> bool:
        first, last = self.piece * piece, self.piece * (piece + 1)
        first -= 0 if self.lined else self.piece - 1
        places = (divmod(e % self.n**2, self.n) for e in range(max(first, 0), min(last, self.matrices * self.n**2)))
        return any(major >= minor if by_rows else major <= minor for major, minor in places)


@dataclass(frozen=True)
class CoveredRows:
    """The stage of one triangle of order `n`, float32, whose rows come by the pieces of memory that they are in.

    A row begins in its first piece wherever it does so in memory, and so do those below it: lines are as many
    elements longer than whole pieces as rows are. Groups of eight rows share lines as in `WarpShape`.
    """

    n: int

    @property
    def side(self) -> int:
        """Groups of eight rows."""
        return -(-self.n // TILE)

    @property
    def folds(self) -> int:
        """Groups that share their lines with another one."""
        return -(-self.side // 2)

    def pieces(self, group: int) -> int:
        """Pieces of the longest row of a group, wherever it begins."""
        return 2 * group + 3

    @property
    def line(self) -> int:
        """Scalars from one row of a group to the next."""
        return 4 * (self.pieces(0) + self.pieces(2 * self.folds - 1)) + self.n % 4

    def group(self, number: int) -> int:
        """Where the first row of a group begins, behind what is before it in a piece."""
        if number < self.folds:
            return TILE * self.line * number
        partner = 2 * self.folds - 1 - number
        return TILE * self.line * partner + 4 * self.pieces(partner)

    @property
    def scalars(self) -> int:
        """Scalars of the stage."""
        return TILE * self.folds * self.line + 4
