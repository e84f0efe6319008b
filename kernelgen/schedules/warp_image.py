"""Room in shared memory for whole matrices of the warp family, as they are in memory."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.gpu import PIECE_BYTES, WARP
from kernelgen.targets import ELEMENT_BYTES


@dataclass(frozen=True)
class WarpImage:
    """`matrices` of order `n` of a warp, one after another, moved by `turns` of instructions, a piece to each lane.

    The first of them begins in a piece wherever it does so in memory.
    """

    n: int
    matrices: int
    dtype: str

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.dtype]

    @property
    def pieces(self) -> int:
        """Pieces that have an element of the matrices, wherever these begin."""
        return -(-(self.matrices * self.n**2 + self.piece - 1) // self.piece)

    @property
    def turns(self) -> int:
        """Instructions that move them all."""
        return -(-self.pieces // WARP)

    @property
    def scalars(self) -> int:
        """Those of the room."""
        return self.pieces * self.piece

    def wanted(self, turn: int, *, by_rows: bool) -> int:
        """The lanes, as bits, whose pieces of a turn may have an element of a triangle."""
        return sum(self._wanted(turn * WARP + lane, by_rows) << lane for lane in range(WARP))

    def _wanted(self, piece: int, by_rows: bool) -> bool:
        first, last = self.piece * (piece - 1) + 1, self.piece * (piece + 1)
        places = (divmod(e % self.n**2, self.n) for e in range(max(first, 0), min(last, self.matrices * self.n**2)))
        return any(major >= minor if by_rows else major <= minor for major, minor in places)
