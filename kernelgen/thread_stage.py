"""How warps of the thread family hand canonical matrices to their threads, through shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from kernelgen.gpu import BANKS_BYTES, MAX_SHARED_BYTES, MEMORY_BYTES, PIECE_BYTES, WARP
from kernelgen.refusals import require
from kernelgen.targets import ELEMENT_BYTES

if TYPE_CHECKING:
    from kernelgen.schedules import ThreadSchedule

# Pieces that the banks of shared memory serve at a time.
BANKS_PIECES = BANKS_BYTES // PIECE_BYTES


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
        """Those of the stage of a warp."""
        return WARP * self.n**2 + (WARP // self.group * self.piece if self.group else 0)

    @property
    def shared_bytes(self) -> int:
        """Those of a block of threads."""
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
