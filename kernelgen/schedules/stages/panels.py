"""How whole warps of a GPU share a matrix in shared memory that is factored by panels of Householder reflectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kernelgen.gpu import PIECE_BYTES, WARP
from kernelgen.problem import Problem
from kernelgen.targets import ELEMENT_BYTES

# Operations that have such kernels.
OPERATIONS = ("geqrf", "gels")
# Of the 255 registers of a thread, those that can be elements of a panel.
MAX_PANEL_REGISTERS = 128


@dataclass(frozen=True)
class PanelStage:
    """Room for a matrix of m x n that `split` threads of a GPU have in shared memory, whole warps of them.

    One warp makes `nb` reflectors in its registers, a lane having every so-many-th row of their columns, and the
    triangle that makes one block of them; the others apply it to the columns behind, while that one goes ahead to the
    next. From one row to the next there is
    an odd number of pieces: lanes that read a piece of a row each read from different banks.
    """

    problem: Problem
    split: int
    nb: ClassVar[int] = 8

    @property
    def fits(self) -> bool:
        """Whether there are such kernels of an operation, and a lane has registers for a panel."""
        works = self.problem.op in OPERATIONS and self.split % WARP == 0
        return works and self.registers <= MAX_PANEL_REGISTERS

    @property
    def rows(self) -> int:
        """Rows of a lane, the last of which not every lane has."""
        return -(-self.problem.rows // WARP)

    @property
    def registers(self) -> int:
        """Registers of a thread that hold elements of a panel."""
        return self.rows * self.nb * ELEMENT_BYTES[self.problem.dtype] // 4

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]

    @property
    def panels(self) -> int:
        """Panels of all reflectors."""
        return -(-min(self.problem.rows, self.problem.n) // self.nb)

    @property
    def padded(self) -> int:
        """Columns of whole pieces, and at least those of all panels."""
        return max(-(-self.problem.n // self.piece) * self.piece, self.panels * self.nb)

    @property
    def solves(self) -> int:
        """Right-hand sides that are reflected while the matrix is factored: a piece, if there are any."""
        return self.piece * self.problem.operation.has_columns

    @property
    def line(self) -> int:
        """Scalars from one row to the next, behind the columns those of right-hand sides."""
        return self.piece * ((self.padded + self.solves) // self.piece | 1)

    @property
    def matrix(self) -> int:
        """Scalars of a matrix, of two panels' tops and triangles, and of units of columns and tau."""
        size = self.problem.rows * self.line + 4 * self.nb**2
        size += 2 * (self.padded + self.solves)
        return self.piece * (-(-size // self.piece) | 1)

    def shared_bytes(self, threads: int) -> int:
        """Bytes of shared memory of a block."""
        return threads // self.split * self.matrix * ELEMENT_BYTES[self.problem.dtype]
