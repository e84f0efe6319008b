"""Where threads of a GPU share matrices that they factor and solve with: each of k threads has every k-th row."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.gpu import MAX_SHARED_BYTES, WARP
from kernelgen.problem import Problem
from kernelgen.refusals import require
from kernelgen.targets import ELEMENT_BYTES

SPLITS = (2, 4, 8)
# What a thread's rows may take of its registers: more, and some were spilled.
MAX_REGISTERS = 180


@dataclass(frozen=True)
class RowsStage:
    """What a block has in shared memory, and a thread in registers, where `split` threads have a matrix."""

    problem: Problem
    split: int

    @property
    def rows(self) -> int:
        """Rows of a thread."""
        return -(-self.problem.n // self.split)

    @property
    def registers(self) -> int:
        """Registers of a thread that hold its rows of a matrix and of a right-hand side."""
        elements = self.split * self.rows * (self.rows + 1) // 2 + self.rows
        return elements * ELEMENT_BYTES[self.problem.dtype] // 4

    @property
    def shared_bytes(self) -> int:
        """Triangles and right-hand sides of as many matrices as a warp has threads."""
        elements = self.problem.n * (self.problem.n + 1) // 2 + self.rows * self.split
        return WARP * elements * ELEMENT_BYTES[self.problem.dtype]


def check_rows(stage: RowsStage) -> None:
    """Refuse other numbers of threads, and what they or a block have no room for."""
    n = stage.problem.n
    require(stage.split in SPLITS, "split", stage.split, f"use one of {', '.join(map(str, SPLITS))}")
    works = f"n={n} is {stage.registers} registers of each thread, over {MAX_REGISTERS}; use a larger split"
    require(stage.registers <= MAX_REGISTERS, "n", n, works)
    works = f"n={n} is {stage.shared_bytes:,} bytes of shared memory, over the {MAX_SHARED_BYTES:,} of a block"
    require(stage.shared_bytes <= MAX_SHARED_BYTES, "n", n, works)
