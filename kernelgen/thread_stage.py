"""How warps of the thread family hand canonical matrices to their threads, through shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelgen.block_shape import MAX_SHARED_BYTES, PIECE_BYTES, WARP
from kernelgen.refusals import require
from kernelgen.targets import ELEMENT_BYTES

if TYPE_CHECKING:
    from kernelgen.schedules import ThreadSchedule

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
        return self.threads * self.pitch * ELEMENT_BYTES[self.dtype]

    @property
    def turns(self) -> int:
        """Pieces of a lane, when all lanes copy the matrices of a warp."""
        return -(-(self.n**2) // self.piece)


def check_staged(schedule: ThreadSchedule, stage: ThreadStage, layout: str) -> None:
    """Refuse what the warps of a GPU cannot stage."""
    works = "of other layouts a GPU's threads read neighbours in memory as it is, use None"
    require(layout == "canonical", "staged", schedule.staged, works)
    works = "staged matrices stay in registers, use 'full'"
    require(schedule.unroll == "full", "unroll", schedule.unroll, works)
    works = f"staged matrices are those of whole warps, use a multiple of {WARP}"
    require(stage.threads % WARP == 0, "threads", stage.threads, works)
    works = (
        f"n={stage.n} is {stage.shared_bytes:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a block; "
        "use fewer"
    )
    require(stage.shared_bytes <= MAX_SHARED_BYTES, "threads", stage.threads, works)
