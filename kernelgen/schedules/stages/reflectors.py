"""How several threads of a GPU share a matrix that is factored by Householder reflectors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from kernelgen.gpu import BANKS_BYTES, PIECE_BYTES, WARP
from kernelgen.problem import Problem
from kernelgen.targets import ELEMENT_BYTES

# Of the 255 registers of a thread, those that can be elements of its columns.
MAX_COLUMN_REGISTERS = 128
# ... by default, of a part of a warp that makes Q of reflectors.
MAX_Q_REGISTERS = 96
# Rows of a thread that are written, and leave its registers, at a time.
STEP = 4
# Threads that share a column: powers of two.
MOST_PARTS = 4
# Threads that share a matrix: a block's, if a warp has too few.
SPLITS = (4, 8, 16, WARP, 2 * WARP, 4 * WARP, 8 * WARP)
# Multiply-adds of the code of all loops. Fetching code that runs once takes longer than running it: on an H200 32,768
# matrices of n = 32 take 16 threads each 194 µs straight on, and 172 in loops of four panels.
CODE = 3_000
# ... and elements of its columns and of the one that is shown, beyond which that is read twice.
KEPT_REGISTERS = 160
# Neighbours in memory that are read at once, and those of a block that are on their way at a time.
SECTOR_BYTES = 32
SLAB_BYTES = 36 << 10
# Right-hand sides that reflectors are applied to at a time.
RHS = 4


class Segment(NamedTuple):
    """Panels of steps in one loop: the first slot of a thread that they change, rows in its registers, and panels."""

    slot: int
    height: int
    first: int
    panels: int


@dataclass(frozen=True)
class ReflectorStage:
    """A matrix of m x n that `split` threads of a GPU share, by columns.

    A column has `parts` threads, each of which has every `parts`-th row of it in registers; a thread has such a share
    of `slots` columns, `across` from one to the next. The column that makes a reflector is shown to the others in
    shared memory. Reflectors are applied to columns elsewhere by as many threads as a warp has at most, and there
    each has every so-many-th row.
    """

    problem: Problem
    split: int
    layout: str = "canonical"

    @property
    def parts(self) -> int:
        """Threads of a column: the fewest that have registers for it; MOST_PARTS where those are too few.

        Of four warps two factor faster: 1,024 matrices of n = 128 take them 419 µs on an H200, one 478.
        """
        parts = 2 if self.split == 4 * WARP and self.problem.operation.factors else 1
        while parts < min(MOST_PARTS, self.split) and self._registers(parts) > MAX_COLUMN_REGISTERS:
            parts *= 2
        return parts

    def _registers(self, parts: int) -> int:
        local = -(-self.problem.rows // (STEP * parts)) * STEP
        return local * -(-self.problem.n // (self.split // parts)) * ELEMENT_BYTES[self.problem.dtype] // 4

    @property
    def registers(self) -> int:
        """Registers of a thread that hold elements of its columns, or of those that it applies reflectors to."""
        share = -(-self.problem.rows // min(self.split, WARP)) * (RHS + 1) * self._bytes // 4
        return max(self._registers(self.parts), share if self.problem.operation.has_columns else 0)

    @property
    def across(self) -> int:
        """Columns side by side."""
        return self.split // self.parts

    @property
    def slots(self) -> int:
        """Columns of a thread, the last of which not every thread has."""
        return -(-self.problem.n // self.across)

    @property
    def panel(self) -> int:
        """Steps until rows leave the registers."""
        return STEP * self.parts

    @property
    def local(self) -> int:
        """Rows of a thread, the last of which are zeros."""
        return -(-self.problem.rows // self.panel) * STEP

    @property
    def steps(self) -> int:
        """Reflectors that there are: the last row alone has none."""
        return min(self.problem.rows - 1, self.problem.n)

    @property
    def warps(self) -> int:
        """Warps of a matrix."""
        return -(-self.split // WARP)

    @property
    def members(self) -> int:
        """Matrices of a warp."""
        return max(1, WARP // self.split)

    @property
    def piece(self) -> int:
        """Scalars of a piece."""
        return PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]

    @property
    def shows(self) -> bool:
        """Whether columns are shown to other threads, or else only read row by row."""
        return self.problem.op != "ormqr"

    @property
    def rereads(self) -> bool:
        """Whether threads read the shown column twice, and do not keep it in registers."""
        words = ELEMENT_BYTES[self.problem.dtype] // 4
        return (self.slots + 1) * self.local * words > KEPT_REGISTERS

    @property
    def part(self) -> int:
        """Scalars of a part of a column in shared memory: what is shown in a loop may go on behind the last row."""
        most = max((each.panels for each in self.segments), default=1)
        part = self.local + (most - 1) * STEP * (self.problem.op != "geqrf")
        return next(each for each in count(part, self.piece) if self._apart(each))

    def _apart(self, part: int) -> bool:
        """Whether the pieces that the threads of a column read at once are in banks of their own."""
        pieces, words = BANKS_BYTES // PIECE_BYTES, part // self.piece
        return len({each * words % pieces for each in range(self.parts)}) == self.parts

    @property
    def line(self) -> int:
        """Scalars of a column in shared memory."""
        return self.part * self.parts if self.shows else self.problem.rows | 1

    @property
    def scalars(self) -> int:
        """Where the numbers that go with each reflector begin, of those of a matrix: tau and its divisor."""
        return self.line * (2 if self.problem.op == "geqrf" else self.problem.n)

    @property
    def matrix(self) -> int:
        """Scalars from one matrix to the next: others' threads read from other banks."""
        size, banks = self.scalars + 2 * self.problem.n, BANKS_BYTES // ELEMENT_BYTES[self.problem.dtype]
        size = -(-size // self.piece) * self.piece
        return size + (min(self.split, WARP) - size) % banks

    def matrices(self, threads: int) -> int:
        """Matrices of a block of threads."""
        return threads // self.split

    def together(self, threads: int) -> bool:
        """Whether the threads of a block read and write its matrices together: pieces of memory of neighbours."""
        return (
            self.layout != "canonical" and self.warps == 1 and self.matrices(threads) >= SECTOR_BYTES // self._bytes
        )

    def slab(self, threads: int) -> int:
        """Rows of a block's matrices that are in shared memory on their way, whole panels."""
        panel = self.panel * self.problem.n * self.matrices(threads) * self._bytes
        return self.panel * max(1, min(SLAB_BYTES // panel, self.local // STEP))

    def pitch(self, threads: int) -> int:
        """Scalars from one matrix to the next there: neighbours write to other banks than each other."""
        size, banks = self.slab(threads) * self.problem.n, BANKS_BYTES // 4
        return size + (min(self.split, WARP) + 1 - size) % banks

    @property
    def _bytes(self) -> int:
        return ELEMENT_BYTES[self.problem.dtype]

    def shared_bytes(self, threads: int) -> int:
        """Bytes of shared memory of a block."""
        slab = self.pitch(threads) if self.problem.operation.factors and self.together(threads) else 0
        return self.matrices(threads) * (self.matrix + slab) * self._bytes

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The loops of the factorization: of two panels, or as few more as the budget of code allows."""
        most = 2
        while (found := self._segments(most)) and self._code(found) > CODE and most < 2 * SPLITS[-1]:
            most *= 2
        return found

    def _segments(self, most: int) -> tuple[Segment, ...]:
        found: list[Segment] = []
        for place in range(-(-self.steps // self.panel)):
            slot, height = place * self.panel // self.across, self.local - place * STEP
            last = found[-1] if found else None
            if last is not None and last.slot == slot and last.panels < most:
                found[-1] = last._replace(panels=last.panels + 1)
            else:
                found.append(Segment(slot, height, place, 1))
        return tuple(found)

    def _code(self, segments: tuple[Segment, ...]) -> int:
        return sum(2 * self.panel * each.height * (self.slots - each.slot) for each in segments)


def least_threads(problem: Problem) -> int:
    """The fewest of `SPLITS` with registers for the matrices of a problem of QR factorizations.

    Four are slower: 65,536 matrices of n = 16 take them 74 µs on an H200, eight 58. Q is better made by more threads:
    of 32,768 matrices of n = 32 by sixteen in 123 µs, by eight in 155.
    """
    most = dict.fromkeys(SPLITS[1:], MAX_COLUMN_REGISTERS)
    if problem.op == "orgqr":
        most |= dict.fromkeys((split for split in most if split < WARP), MAX_Q_REGISTERS)
    return next(split for split, limit in most.items() if ReflectorStage(problem, split).registers <= limit)
