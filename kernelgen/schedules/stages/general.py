"""What a GPU's warps have of general matrices in shared memory and in registers."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from types import MappingProxyType
from typing import ClassVar

from kernelgen.gpu import BANKS_BYTES, PIECE_BYTES, WARP
from kernelgen.problem import MAX_N, Problem
from kernelgen.schedules.stages.reflectors import least_threads
from kernelgen.targets import ELEMENT_BYTES

# Of the 255 registers of a thread, those that can be elements of its general matrix.
MAX_GENERAL_REGISTERS = 200
# ... and those that can be elements of its rows of one, beside the work of a step.
MAX_ROW_REGISTERS = 128
# Columns that are eliminated between two moves of the others.
PANEL = 4
# Threads of a warp that share a matrix: two are slower (131,072 systems of n = 16 on an H100: 165 µs, four 146).
SPLITS = (4, 8, 16, WARP)
# The most threads to a matrix: a block has a warp for right-hand sides besides.
MAX_SPLIT = 15 * WARP
# The largest order whose rows are chosen among registers.
MOST_CHOOSING = 20
# Columns of a matrix that each of its warps has.
WIDTHS = MappingProxyType({"float32": 16, "float64": 12})


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
        if self.in_pieces:
            return WARP * (rows * n // self.piece | 1) * self.piece
        return WARP * ((rows * n if self.layout == "canonical" else max(rows, n)) | 1)

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]

    @property
    def in_pieces(self) -> bool:
        """Whether each matrix is a number of pieces, and read and written so: of QR factorizations."""
        whole = self.problem.rows * self.problem.n % self.piece == 0
        return whole and self.layout == "canonical" and self.problem.operation.rectangular

    @property
    def scalars(self) -> int:
        """Scalars of a warp."""
        return self.elements + (WARP * (self.problem.n | 1) if self.problem.op == "gesv" else 0)

    def shared_bytes(self, threads: int) -> int:
        """Bytes of shared memory of a block."""
        return threads // WARP * self.scalars * ELEMENT_BYTES[self.problem.dtype]


@dataclass(frozen=True)
class SharedStage:
    """Room for general matrices of a warp, one to a thread, which has `PANEL` columns at a time in registers.

    A piece of a row of each is next to those of the others, so that threads that read different rows read different
    banks. Behind them are right-hand sides, or pivots and then the order of rows.
    """

    problem: Problem
    width: ClassVar[int] = PANEL

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]

    @property
    def panels(self) -> int:
        """How often there are columns in registers."""
        return -(-self.problem.n // self.width)

    @property
    def registers(self) -> int:
        """Registers of a thread that hold elements of a panel, and the places of rows."""
        return self.problem.n * (self.width * ELEMENT_BYTES[self.problem.dtype] // 4 + 1)

    @property
    def rhs(self) -> int:
        """Right-hand sides at a time, such as leave registers for other things."""
        return self.width if self.registers <= MAX_ROW_REGISTERS else 2

    @property
    def line(self) -> int:
        """Bytes of a row of all matrices."""
        return self.panels * self.width * ELEMENT_BYTES[self.problem.dtype] * WARP

    @property
    def bytes(self) -> int:
        """Bytes of a warp."""
        n = self.problem.n
        behind = ELEMENT_BYTES[self.problem.dtype] if self.problem.operation.forgets else 4
        return n * self.line + WARP * (n | 1) * behind

    def shared_bytes(self, threads: int) -> int:
        """Bytes of shared memory of a block."""
        return threads // WARP * self.bytes


@dataclass(frozen=True)
class SplitStage:
    """Room for general matrices of a warp that has `split` threads for each, by rows.

    A thread has neighbouring rows in its registers until the end. In shared memory are first the matrix that was
    given, if it is of an array, then the factors, every row in its place, where threads read the row by which they
    eliminate. Threads that read a piece each read from different banks: from one's rows to the next one's there is an
    odd number of pieces, and behind each matrix there is padding, so that the next one's lines are in the banks that
    its own leave free.
    """

    problem: Problem
    split: int
    layout: str

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
        """Registers of a thread that hold elements of its rows."""
        return self.rows * self.problem.n * ELEMENT_BYTES[self.problem.dtype] // 4

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]

    @property
    def padded(self) -> int:
        """Columns of whole pieces."""
        return -(-self.problem.n // self.piece) * self.piece

    @property
    def share(self) -> int:
        """Scalars from a thread's rows to those of the next: an odd number of pieces."""
        return self.piece * (self.rows * self.padded // self.piece | 1)

    @property
    def chooses(self) -> bool:
        """Whether a thread finds the elements of the row that is chosen among its own before it stores them.

        That saves stores, each of which takes as long as one of all threads; but the code of larger orders would
        outgrow the instruction cache. (131,072 on an H200: n = 16 80 µs by a store for each row, so 64; n = 32 385
        and 426, 409 where it chooses among two rows each.)
        """
        return self.problem.n <= MOST_CHOOSING

    @property
    def together(self) -> int:
        """Rows of a matrix that a warp copies at once, a multiple of a thread's; 0 if pieces are of two rows."""
        pieces, rest = divmod(self.problem.n, self.piece)
        return 0 if rest else WARP // pieces // self.rows * self.rows

    @property
    def beside(self) -> int:
        """Where notes of places begin, behind a matrix, if it is factored."""
        return -(-self.problem.n // self.rows) * self.share

    @property
    def note(self) -> int:
        """Scalars of a place's: the number of the row that comes there, and what it has of a right-hand side."""
        return self.problem.operation.factors + self.problem.operation.forgets

    @property
    def matrix(self) -> int:
        """Scalars from one matrix to the next: neighbours, which have one each, read pieces of different banks."""
        size, banks = self.beside + self.padded * self.note, BANKS_BYTES // PIECE_BYTES
        apart = max(banks // self.members, 1)
        return size + (apart - size // self.piece) % banks * self.piece

    @property
    def columns(self) -> int:
        """Where right-hand sides and solutions begin, or the pivots."""
        return self.members * self.matrix

    @property
    def column(self) -> int:
        """Scalars of a right-hand side, or of the pivots of a matrix: an odd number."""
        return self.problem.n | 1

    @property
    def scalars(self) -> int:
        """Scalars of a warp."""
        scalars = self.columns + self.members * self.column
        return -(-scalars // self.piece) * self.piece

    def shared_bytes(self, threads: int) -> int:
        """Bytes of shared memory of a block."""
        return threads // WARP * self.scalars * ELEMENT_BYTES[self.problem.dtype]


@dataclass(frozen=True)
class WarpsStage:
    """Several warps to a general matrix, which have its columns in their registers, `WIDTHS` or so to each.

    The lanes of a warp have rows. What a warp finds while it factors its columns the others read in shared memory:
    multipliers, and where rows are. Where a matrix is solved by at once, a further warp has right-hand sides.
    """

    problem: Problem
    split: int
    panel: ClassVar[int] = PANEL

    @property
    def warps(self) -> int:
        """Warps that have columns of a matrix."""
        return self.split // WARP

    @property
    def threads(self) -> int:
        """Threads of a block, which has one matrix."""
        return self.split + WARP * self.problem.operation.forgets

    @property
    def rows(self) -> int:
        """Rows of a lane, the last of which not every lane has."""
        return -(-self.problem.n // WARP)

    @property
    def width(self) -> int:
        """Columns of a warp, whole panels; the last ones may have fewer."""
        return -(-self.problem.n // (self.warps * self.panel)) * self.panel

    @property
    def turns(self) -> int:
        """Warps that have any columns: the last ones of many may have none, and nothing to say."""
        return -(-self.problem.n // self.width)

    @property
    def registers(self) -> int:
        """Registers of a thread that hold elements of its rows."""
        return self.rows * self.width * ELEMENT_BYTES[self.problem.dtype] // 4

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]

    @property
    def line(self) -> int:
        """Scalars of a row of a warp's columns, in whole pieces."""
        return -(-self.width // self.piece) * self.piece

    @property
    def rhs(self) -> int:
        """Right-hand sides at a time: a piece of them."""
        return self.piece

    def shared_bytes(self, threads: int) -> int:
        """Bytes of a block: multipliers, two rows of each warp, right-hand sides and solutions; places, the info."""
        operation, height = self.problem.operation, self.rows * WARP
        scalars = 2 * (height * self.width + threads // WARP * self.line) * operation.factors
        scalars += 2 * height * self.rhs * operation.has_columns
        return scalars * ELEMENT_BYTES[self.problem.dtype] + 4 * 4 * height + PIECE_BYTES


@dataclass(frozen=True)
class BlockStage:
    """Room for a general matrix that `split` threads have in shared memory, whole warps of them.

    One warp factors `nb` columns in its registers, a lane rows of them; all warps exchange rows in the others, and
    update them by tiles. From one row to the next there is an odd number of pieces: lanes that read a piece of a row
    each read from different banks.
    """

    problem: Problem
    split: int
    nb: ClassVar[int] = 8
    tile: ClassVar[int] = 4

    @property
    def rows(self) -> int:
        """Rows of a lane, the last of which not every lane has."""
        return -(-self.problem.n // WARP)

    @property
    def registers(self) -> int:
        """Registers of a thread that hold elements of a panel."""
        return self.rows * self.nb * ELEMENT_BYTES[self.problem.dtype] // 4

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]

    @property
    def padded(self) -> int:
        """Columns of whole panels."""
        return -(-self.problem.n // self.nb) * self.nb

    @property
    def line(self) -> int:
        """Scalars from one row to the next, behind the columns of panels a piece of right-hand sides."""
        return self.piece * (self.padded // self.piece + 1 | 1)

    @property
    def matrix(self) -> int:
        """Scalars from one matrix to the next: an odd number of pieces."""
        return self.piece * (self.problem.n * self.line // self.piece | 1)

    def shared_bytes(self, threads: int) -> int:
        """Bytes of a block: its matrices, and beside each where rows were and go, pivots, their order, the info."""
        notes = 4 * (2 * self.nb + 2 * self.problem.n + 1)
        return threads // self.split * (self.matrix * ELEMENT_BYTES[self.problem.dtype] + notes)


def registers_of_one(problem: Problem) -> int:
    """Registers of a thread that has a whole matrix."""
    return problem.rows * problem.n * ELEMENT_BYTES[problem.dtype] // 4


def most_general_order(dtype: str, split: int | None = None) -> int:
    """The largest order of general matrices that kernels of GPUs are for with `split` threads to a matrix."""
    if split is None:
        return isqrt(MAX_GENERAL_REGISTERS * 4 // ELEMENT_BYTES[dtype])
    scalars = MAX_ROW_REGISTERS * 4 // ELEMENT_BYTES[dtype]
    rows, columns = min(split, WARP), max(split // WARP, 1)
    return max(n for n in range(1, MAX_N + 1) if -(-n // rows) * -(-n // columns) <= scalars)


def least_split(problem: Problem) -> int | None:
    """The threads to each general matrix of a problem, None for one: the fewest of a warp, or warps of `WIDTHS`.

    Of rectangles the fewest that have registers for them.
    """
    n, dtype = problem.n, problem.dtype
    if problem.operation.rectangular:
        return None if registers_of_one(problem) <= MAX_GENERAL_REGISTERS else least_threads(problem)
    if n <= most_general_order(dtype):
        return None
    return next((split for split in SPLITS if n <= most_general_order(dtype, split)), WARP * -(-n // WIDTHS[dtype]))
