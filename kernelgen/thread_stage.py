"""How warps of the thread family hand canonical matrices to their threads, through shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.block_shape import WARP
from kernelgen.targets import ELEMENT_BYTES

# What one instruction moves between memory and shared memory.
PIECE_BYTES = 16
# What memory hands out at least.
SECTOR_BYTES = 32


@dataclass(frozen=True)
class ThreadStage:
    """Room for the matrices of `threads` threads, a stage to each warp: its matrices one after another, as in memory.

    A thread reads its own, all threads at once: matrices begin an odd number of what they read apart, and so in
    different banks.
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
    def padding(self) -> int:
        """Scalars between two matrices."""
        return self.width if self.n**2 // self.width % 2 == 0 else 0

    @property
    def pitch(self) -> int:
        """Scalars from the beginning of a matrix to that of the next one."""
        return self.n**2 + self.padding

    @property
    def skips(self) -> bool:
        """Whether a line of a matrix has sectors of memory that hold nothing of the triangle."""
        return self.n * ELEMENT_BYTES[self.dtype] > SECTOR_BYTES

    @property
    def shared_bytes(self) -> int:
        """Those of a block of threads."""
        return -(-self.threads // WARP) * WARP * self.pitch * ELEMENT_BYTES[self.dtype]

    @property
    def turns(self) -> int:
        """Pieces of a lane, when all lanes copy the matrices of a warp."""
        return -(-(self.n**2) // self.piece)

    @property
    def unroll(self) -> int:
        """Copies of a lane in a turn of its loops."""
        return 8
