"""Room in shared memory for the matrices of the thread family's blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from kernelgen.gpu import (
    BANKS_BYTES,
    MAX_SHARED_BYTES,
    MEMORY_BYTES,
    PIECE_BYTES,
    RESERVED_BYTES,
    WARP,
)
from kernelgen.targets import ELEMENT_BYTES

# Pieces that the banks of shared memory serve at a time.
BANKS_PIECES = BANKS_BYTES // PIECE_BYTES
# Copies by wide instructions are worth one warp of four, not more.
_WARPS_KEPT = 0.75


@dataclass(frozen=True)
class ThreadStage:
    """Room for the matrices of `threads` threads, a stage to each warp: its matrices one after another, as in memory.

    A thread reads its own, all threads at once. Where their matrices would begin in the same banks there is a piece
    of padding after every `group` of them, which is a number of pieces that fill all banks.
    """

    n: int
    dtype: str
    threads: int

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.dtype]

    @property
    def width(self) -> int:
        """Scalars that a thread reads at once: a piece where every matrix begins with one."""
        return self.piece if self.n**2 % self.piece == 0 else 1

    @property
    def group(self) -> int:
        """Matrices between two paddings; 0 if there is none."""
        pieces, odd = divmod(self.n**2, 2 * self.piece)
        return 0 if odd else BANKS_PIECES // gcd(2 * pieces, BANKS_PIECES)

    @property
    def scalars(self) -> int:
        """Scalars of the stage of a warp."""
        return WARP * self.n**2 + (WARP // self.group * self.piece if self.group else 0)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.threads // WARP * self.scalars * ELEMENT_BYTES[self.dtype]

    @property
    def parts(self) -> int:
        """Equal parts of a warp's matrices: what a lane copies of the first one it copies of every other."""
        return gcd(self.n**2 // self.piece, WARP) if self.width > 1 else 1

    @property
    def turns(self) -> int:
        """Pieces of a part that a lane copies; some lanes have one less where not every matrix begins with one."""
        return -(-(self.n**2) // (self.piece * self.parts))

    @property
    def skips(self) -> bool:
        """Whether pieces above the diagonal are not read: they are where memory hands them out in any case, or where
        it would have to be found out for every piece of a warp's matrices.
        """
        return self.parts > 1 and self.n * ELEMENT_BYTES[self.dtype] >= MEMORY_BYTES


@dataclass(frozen=True)
class SolveStage:
    """Room for what threads factor and solve with: `rhs` right-hand sides of each, if any, its triangle if `staged`.

    Elements of a warp's triangles are `interleaved`, column after column, or else its matrices follow one another,
    row after row, each row filled up to whole pieces of `width` scalars. The matrices are then an odd number of
    pieces apart, and right-hand sides always an odd number of scalars: all threads at once read from different banks.
    """

    n: int
    dtype: str
    threads: int
    rhs: int
    staged: bool
    interleaved: bool

    @property
    def width(self) -> int:
        """Scalars of a piece: as many as divide rows and one instruction moves, unless few warps have the room."""
        if self.interleaved:
            return 1
        widths = [width for width in (4, 2) if self.n % width == 0 and width * self._bytes <= PIECE_BYTES]
        enough = _WARPS_KEPT * self._resident(1)
        return next((width for width in widths if self._resident(width) >= enough), 1)

    @property
    def member(self) -> int:
        """Scalars between the triangles of neighbouring threads."""
        return 1 if self.interleaved else self._member(self.width)

    @property
    def columns(self) -> int:
        """Scalars between the right-hand sides of neighbouring threads."""
        return self.n * self.rhs | 1 if self.rhs else 0

    @property
    def triangles(self) -> int:
        """Scalars of a warp's triangles, a multiple of its threads."""
        each = self.n * (self.n + 1) // 2 if self.interleaved else self.member
        return WARP * each if self.staged else 0

    @property
    def scalars(self) -> int:
        """Scalars of a warp."""
        return self.triangles + WARP * self.columns

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.threads // WARP * self.scalars * self._bytes

    @property
    def _bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    def _member(self, width: int) -> int:
        """An odd number of pieces that hold a triangle's rows."""
        return width * (sum(-(-row // width) for row in range(1, self.n + 1)) | 1)

    def _resident(self, width: int) -> int:
        """Warps that a multiprocessor has room for."""
        room = WARP * (self._member(width) + self.columns) * self._bytes
        return (MAX_SHARED_BYTES + RESERVED_BYTES) // (room + RESERVED_BYTES)
