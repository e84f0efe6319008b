"""Where threads of a GPU share matrices that they factor and solve with: each of k threads has every k-th row."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from kernelgen.gpu import BANKS_BYTES, MAX_SHARED_BYTES, PIECE_BYTES, RESERVED_BYTES
from kernelgen.problem import Problem
from kernelgen.refusals import require
from kernelgen.targets import ELEMENT_BYTES

# Threads of a matrix; of those of the last number each has some columns of some rows, of the others whole rows.
SPLITS = (2, 4, 8, 16)
SIDE = 4
# What a thread's rows may take of its registers: more, and some were spilled.
MAX_REGISTERS = 180


@dataclass(frozen=True)
class RowsStage:
    """What threads have in shared memory and in registers where `split` of them have a matrix.

    `threads` are those of a block; where matrices are arrays (`canonical`), a block is one warp.
    """

    problem: Problem
    split: int
    threads: int
    canonical: bool = False

    @property
    def side(self) -> int:
        """Threads of a row or a column, where they are a grid; else 1."""
        return SIDE if self.split == SIDE**2 else 1

    @property
    def share(self) -> int:
        """Rows that the threads of a matrix have one of each."""
        return self.side if self.side > 1 else self.split

    @property
    def rows(self) -> int:
        """Rows of a thread."""
        return -(-self.problem.n // self.share)

    @property
    def sides(self) -> int:
        """Elements of a right-hand side that a thread copies."""
        return -(-self.problem.n // self.split)

    @property
    def registers(self) -> int:
        """Registers of a thread that hold its rows of a matrix and of a right-hand side."""
        lines = self.rows * (self.rows + 1) // 2
        elements = lines + 2 * self.rows if self.side > 1 else self.split * lines + self.rows
        return elements * ELEMENT_BYTES[self.problem.dtype] // 4

    @property
    def matrices(self) -> int:
        """Matrices of a block."""
        return self.threads // self.split

    @property
    def piece(self) -> int:
        """Neighbours in memory that one instruction copies."""
        most = PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]
        return gcd(most, self.problem.n, self.split, SIDE) if self.canonical else most

    @property
    def triangle(self) -> int:
        """Scalars of a triangle in shared memory, with what keeps rows of arrays, and arrays, in different banks."""
        n, step = self.problem.n, self.share // self.piece
        if not self.canonical:
            return n * (n + 1) // 2
        apart = [step * (row | 1) if self.side > 1 else step * row | 1 for row in range(1, self.rows + 1)]
        line = BANKS_BYTES // (self.piece * ELEMENT_BYTES[self.problem.dtype])
        pieces = self.share * sum(apart)
        return (pieces + (self.share * (step if self.side > 1 else 1) - pieces) % line) * self.piece

    @property
    def shared_bytes(self) -> int:
        """Triangles and right-hand sides of a block's matrices."""
        return self.matrices * (self.triangle + self.sides * self.split) * ELEMENT_BYTES[self.problem.dtype]

    @property
    def blocks(self) -> int:
        """Blocks that the shared memory of a multiprocessor has room for."""
        return (MAX_SHARED_BYTES + RESERVED_BYTES) // (self.shared_bytes + RESERVED_BYTES)


def check_rows(stage: RowsStage) -> None:
    """Refuse other numbers of threads, and what they or a block have no room for."""
    n = stage.problem.n
    require(stage.split in SPLITS, "split", stage.split, f"use one of {', '.join(map(str, SPLITS))}")
    works = "a grid of threads has arrays alone; use fewer"
    require(stage.canonical or stage.side == 1, "split", stage.split, works)
    works = f"n={n} is {stage.registers} registers of each thread, over {MAX_REGISTERS}; use a larger split"
    require(stage.registers <= MAX_REGISTERS, "n", n, works)
    works = f"n={n} is {stage.shared_bytes:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a block"
    require(stage.shared_bytes <= MAX_SHARED_BYTES, "n", n, works)
