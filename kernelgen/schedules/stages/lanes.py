"""How lanes of a warp share a matrix that is factored by Householder reflectors: whole columns in their registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernelgen.gpu import PIECE_BYTES, WARP
from kernelgen.problem import Problem
from kernelgen.targets import ELEMENT_BYTES

# Lanes that may share a matrix.
LANES = (2, 4, 8, 16)
# Of the 255 registers of a thread, those that can be elements of its columns.
MAX_REGISTERS = 144
# Multiply-adds of the code of all loops: what is longer is fetched too slowly.
CODE = 3_200
# Instructions of a step beside its multiply-adds.
STEP = 60


class Step(NamedTuple):
    """A reflector: its column is in slot `at` of its owner, `rows` are left; slots from `start` on are changed."""

    at: int
    start: int
    rows: int


class Loop(NamedTuple):
    """`turns` times the same steps, from reflector `first` on; `slots` are those that end, or begin, with it."""

    first: int
    turns: int
    steps: tuple[Step, ...]
    slots: range


@dataclass(frozen=True)
class LaneStage:
    """A matrix of m x n whose columns `split` lanes of a warp have in registers, `vector` neighbours each in turn.

    The column that makes a reflector is shown to the other lanes by shuffles. Every step writes a row of R out, and
    the rows below move up in the registers, so that the same code can take the next step.
    """

    problem: Problem
    split: int
    layout: str = "canonical"
    order: str = "col"

    @property
    def vector(self) -> int:
        """Neighbouring columns of a lane, which arrays have next to each other in memory."""
        most = PIECE_BYTES // ELEMENT_BYTES[self.problem.dtype]
        if self.layout != "canonical" or self.order != "row":
            return 1
        fitting = (each for each in (4, 2) if each <= most and self.problem.n % (each * self.split) == 0)
        return next(fitting, 1)

    @property
    def columns(self) -> int:
        """Columns of the matrix that a lane has, the last of which not every lane does."""
        return -(-self.problem.n // (self.split * self.vector)) * self.vector

    @property
    def slots(self) -> int:
        """Columns of a lane, with that of a right-hand side where there are such."""
        return self.columns + self.problem.operation.has_columns

    @property
    def registers(self) -> int:
        """Registers of a thread that hold elements of its columns."""
        return self.slots * self.problem.rows * ELEMENT_BYTES[self.problem.dtype] // 4

    @property
    def fits(self) -> bool:
        """Whether lanes have registers for their columns, and each has one."""
        works = self.problem.op in ("geqrf", "orgqr", "gels") and self.problem.n >= self.split
        return works and self.split in LANES and self.registers <= MAX_REGISTERS

    @property
    def members(self) -> int:
        """Matrices of a warp."""
        return WARP // self.split

    @property
    def steps(self) -> int:
        """Reflectors that there are: the last row alone has none."""
        return min(self.problem.rows - 1, self.problem.n)

    @property
    def line(self) -> int:
        """Elements of a row of R in shared memory, with those of as many right-hand sides as there are lanes."""
        return self.problem.n + self.split

    @property
    def matrix(self) -> int:
        """Elements of R in shared memory: odd, that lanes of different matrices meet in few banks."""
        return self.problem.n * self.line | 1

    def shared_bytes(self, threads: int) -> int:
        """Bytes of shared memory of a block: rows of R, if they are solved by, else none."""
        solves = self.problem.operation.has_columns
        return solves * threads // self.split * self.matrix * ELEMENT_BYTES[self.problem.dtype]

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Loops of the factorization: straight-line code if the budget allows, or the fewest turns that it does."""
        each = self.split
        while (found := tuple(self._loops(each))) and _code(found, self.slots) > CODE and each > 1:
            each //= 2
        return found

    @property
    def backward(self) -> tuple[Loop, ...]:
        """Loops that make Q of reflectors, from the last one back; `first` is the one that a loop begins with."""
        each = self.split
        while (found := tuple(self._backward(each))) and _code(found, self.slots) > CODE and each > 1:
            each //= 2
        return found

    def _backward(self, owners: int) -> Iterator[Loop]:
        span, body = self.split * self.vector, owners * self.vector
        for first in reversed(range(0, self.problem.n, span)):
            last, slot = min(first + span, self.problem.n), first // self.split
            turns, rest = divmod(last - first, body)
            started = range(slot, slot + self.vector)
            if rest:
                yield Loop(last - 1, 1, self._steps(last - rest, rest)[::-1], started)
            if turns:
                yield Loop(last - rest - 1, turns, self._steps(first, body)[::-1], range(0) if rest else started)

    @property
    def open(self) -> int:
        """The first slot that has columns left after all loops."""
        return max((loop.slots.stop for loop in self.loops), default=0)

    def _loops(self, owners: int) -> Iterator[Loop]:
        """Loops whose body takes the columns of `owners` lanes one after another."""
        span, body = self.split * self.vector, owners * self.vector
        for first in range(0, self.steps, span):
            last, slot = min(first + span, self.steps), first // self.split
            turns, rest = divmod(last - first, body)
            finished = range(slot, slot + self.vector) if last == first + span else range(0)
            if turns:
                yield Loop(first, turns, self._steps(first, body), range(0) if rest else finished)
            if rest:
                yield Loop(last - rest, 1, self._steps(last - rest, rest), finished)

    def _steps(self, first: int, count: int) -> tuple[Step, ...]:
        span, rows = self.split * self.vector, self.problem.rows
        starts = ((k, k // span * self.vector) for k in range(first, first + count))
        return tuple(Step(start + k % self.vector, start, rows - k) for k, start in starts)


def has_whole_columns(problem: Problem, split: int) -> bool:
    """Whether lanes can have whole columns of the matrices of a problem."""
    return problem.operation.rectangular and LaneStage(problem, split).fits


def _code(loops: tuple[Loop, ...], slots: int) -> int:
    return sum(2 * step.rows * (slots - step.start) + step.rows + STEP for loop in loops for step in loop.steps)
