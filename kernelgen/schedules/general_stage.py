"""What a GPU's warps have of general matrices in shared memory and in registers."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from kernelgen.gpu import BANKS_BYTES, PIECE_BYTES, WARP
from kernelgen.operations import Operation
from kernelgen.problem import Problem
from kernelgen.refusals import require
from kernelgen.targets import ELEMENT_BYTES

# Of the 255 registers of a thread, those that can be elements of its general matrix.
MAX_GENERAL_REGISTERS = 200
# ... and those that can be elements of its rows of one, beside the work of a step.
MAX_ROW_REGISTERS = 144
# Threads that a matrix is split over.
SPLITS = (2, 4, 8, 16, WARP)


@dataclass(frozen=True)
class GeneralStage:
    """Room for general matrices of a warp, one to a thread, if they are arrays, else for their right-hand sides.

    In one place after the other, an odd number of elements to each thread; kernels that factor and solve at once have
    their pivots beside.
    """

    problem: Problem
    layout: str

    @property
    def elements(self) -> int:
        """Scalars of the matrices or the right-hand sides."""
        rows, n = self.problem.rows, self.problem.n
        return WARP * ((rows * n if self.layout == "canonical" else max(rows, n)) | 1)

    @property
    def scalars(self) -> int:
        """Those of a warp."""
        return self.elements + (WARP * (self.problem.n | 1) if self.problem.op == "gesv" else 0)

    def shared_bytes(self, threads: int) -> int:
        """Those of a block of threads."""
        return threads // WARP * self.scalars * ELEMENT_BYTES[self.problem.dtype]


@dataclass(frozen=True)
class SplitStage:
    """Room for general matrices of a warp that has `split` threads for each, whose rows are in their registers.

    A thread has every `split`-th row. Matrices of arrays come by way of shared memory, in the order of memory there.
    Where rows are whole pieces, threads that read a piece each read from different banks: a line is an odd number of
    pieces, and a matrix so many more that those of its neighbour begin where its own end.
    """

    problem: Problem
    layout: str
    split: int

    @property
    def members(self) -> int:
        """Matrices of a warp."""
        return WARP // self.split

    @property
    def rows(self) -> int:
        """Rows of a thread, the last of which not every thread has."""
        return -(-self.problem.n // self.split)

    @property
    def registers(self) -> int:
        """Those of a thread that have elements of its rows."""
        return self.rows * self.problem.n * ELEMENT_BYTES[self.problem.dtype] // 4

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]

    @property
    def whole(self) -> bool:
        """Whether a line of a matrix is whole pieces."""
        return self.problem.n % self.piece == 0

    @property
    def line(self) -> int:
        """Scalars from one line of a matrix to the next."""
        return self._odd(self.problem.n) if self.whole else self.problem.n

    @property
    def matrix(self) -> int:
        """Scalars from one matrix to the next."""
        size = self.problem.n * self.line
        if not self.whole:
            return size
        banks = BANKS_BYTES // PIECE_BYTES
        return size + (self.split - size // self.piece) % banks * self.piece

    @property
    def top(self) -> int:
        """Scalars of a pivot's row and its right-hand side."""
        return self._odd(self.problem.n + 1)

    @property
    def tops(self) -> int:
        """Where pivots' rows begin, those of one step behind those of the step before."""
        elements = self.members * self.matrix if self.layout == "canonical" else 0
        return self._pieces(elements)

    @property
    def columns(self) -> int:
        """Where right-hand sides and solutions begin, or the pivots."""
        return self.tops + (2 * self.members * self.top if self.problem.operation.factors else 0)

    @property
    def column(self) -> int:
        """Scalars of a right-hand side, or of the pivots of a matrix: an odd number."""
        return self.problem.n | 1

    @property
    def scalars(self) -> int:
        """Those of a warp."""
        return self._pieces(self.columns + self.members * self.column)

    def shared_bytes(self, threads: int) -> int:
        """Those of a block of threads."""
        return threads // WARP * self.scalars * ELEMENT_BYTES[self.problem.dtype]

    def _pieces(self, scalars: int) -> int:
        return -(-scalars // self.piece) * self.piece

    def _odd(self, scalars: int) -> int:
        return self.piece * (-(-scalars // self.piece) | 1)


def most_general_order(dtype: str, split: int | None = None) -> int:
    """The largest order of general matrices that kernels of GPUs are for with `split` threads to a matrix."""
    if split is None:
        return isqrt(MAX_GENERAL_REGISTERS * 4 // ELEMENT_BYTES[dtype])
    scalars = MAX_ROW_REGISTERS * 4 // ELEMENT_BYTES[dtype]
    return max(n for n in range(1, scalars + 1) if -(-n // split) * n <= scalars)


def most_threads(operation: Operation) -> int | None:
    """The most threads to a matrix, None for one, of an operation on general matrices."""
    return None if "split" in operation.fixed else WARP


def least_split(problem: Problem) -> int | None:
    """The fewest threads to a matrix, None for one, that have registers for the general matrices of a problem.

    Raises
    ------
    SpecError
        If a warp has too few.
    """
    n, dtype, threads = problem.n, problem.dtype, most_threads(problem.operation)
    if threads is None or n <= most_general_order(dtype):
        return None
    most = most_general_order(dtype, threads)
    require(n <= most, "n", n, f"a warp has no registers for a general matrix of {dtype}; use up to {most}")
    return next(split for split in SPLITS if n <= most_general_order(dtype, split))
