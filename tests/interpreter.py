"""A NumPy interpreter of kernelgen's tile program: the oracle of the generated code.

It carries out the operations in the order in which the microkernels write them down, each rounded as the dtype
rounds, on a whole batch at once, and keeps account of which elements were stored and which of those are final.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kernelgen.programs.potrf import tile_program
from kernelgen.programs.tiles import Gemm, Load, Loop, Node, Potrf, Store, Syrk, TileOp, Trsm, Var

Array = NDArray[np.floating]
MultiplySubtract = Callable[[Array, Array, Array], Array]


class ProgramError(AssertionError):
    """A program that reads what is not there yet, or writes what it must not."""


class State(IntEnum):
    """What became of one element of the result so far."""

    UNTOUCHED = 0
    PARTIAL = 1
    FINAL = 2


@dataclass(frozen=True)
class Interpretation:
    """What a program did.

    `l` is the result, (batch, n, n), with `UNWRITTEN` where nothing was stored; `info` as LAPACK's; `states` and
    `final_stores` say, per element, how far it got and how often it was stored as final; `operations` are the
    operations in the order in which they were carried out.
    """

    l: Array
    info: NDArray[np.int32]
    states: NDArray[np.int8]
    final_stores: NDArray[np.int64]
    operations: tuple[TileOp, ...]

    def first_loads(self) -> Counter[tuple[int, int]]:
        """How often each tile was loaded with its `first` mark."""
        return Counter((op.i, op.j) for op in self.loads() if op.first)

    def loads(self) -> tuple[Load, ...]:
        """The loads of tiles that are worked on, operands left out."""
        return tuple(op for op in self.operations if isinstance(op, Load) and op.tile == "C")


# Not a number that any arithmetic here makes, and exact in both dtypes.
UNWRITTEN = -12345.0


def separate(c: Array, x: Array, y: Array) -> Array:
    """c - x * y, the product and the difference each rounded."""
    return c - x * y


def fused(c: Array, x: Array, y: Array) -> Array:
    """c - x * y in float32, rounded once, but for the ties that rounding to float64 in between can make."""
    return (c.astype(np.float64) - x.astype(np.float64) * y.astype(np.float64)).astype(np.float32)


def interpret(
    a: Array,
    nb: int,
    looking: str,
    *,
    in_place: bool = False,
    program: Iterable[Node] | None = None,
    **arithmetic: MultiplySubtract | Callable[[Array], Array],
) -> Interpretation:
    """Factor matrices of shape (batch, n, n) by the tile program of (n, nb, looking), which is checked on the way.

    Raises
    ------
    ProgramError
        If an operand is read before it is final, or an element is stored after it was.
    """
    if program is None:
        program = tile_program(a.shape[-1], nb, looking, in_place=in_place)
    return Machine(a, nb, in_place, **arithmetic).run(program)  # type: ignore[arg-type]


@dataclass
class Machine:
    """The memory and the registers that a program works on.

    `multiply_subtract` is how c - x * y rounds, and `operand` what becomes of the factors of a product before it is
    formed. A machine that is not `strict` runs any program, however wrong; what was never written reads as NaN.
    """

    a: Array
    nb: int
    in_place: bool = False
    multiply_subtract: MultiplySubtract = separate
    operand: Callable[[Array], Array] = field(default=lambda values: values)
    strict: bool = True

    def __post_init__(self) -> None:
        batch, n, _ = self.a.shape
        dtype = self.a.dtype
        # A wrong program may reach past the last tile: there is room for it, and nothing good in it.
        room = np.full((batch, n + self.nb, n + self.nb), np.nan, dtype)
        self._source = room.copy()
        self._source[:, :n, :n] = self.a
        self._result = self._source if self.in_place else room.copy()
        if not self.in_place:
            self._result[:, :n, :n] = UNWRITTEN
        self._states = np.zeros((n, n), np.int8)
        self._final_stores = np.zeros((n, n), np.int64)
        self._c = np.full((batch, self.nb, self.nb), np.nan, dtype)
        self._c_is_final = False
        self._operands: dict[str, Array] = {}
        self._reciprocals = np.full((batch, n + self.nb), np.nan, dtype)
        self._good = np.zeros(batch, np.int32)
        self._done: list[TileOp] = []

    def run(self, program: Iterable[Node]) -> Interpretation:
        """Carry out a program from beginning to end."""
        with np.errstate(all="ignore"):
            for node in program:
                self._run_node(node, {})
        n = self.a.shape[-1]
        info = np.where(self._good == n, 0, self._good + 1).astype(np.int32)
        return Interpretation(self._result[:, :n, :n], info, self._states, self._final_stores, tuple(self._done))

    def _run_node(self, node: Node, values: Mapping[str, int]) -> None:
        if isinstance(node, Loop):
            for value in range(_number(node.start, values), _number(node.stop, values)):
                for inner in node.body:
                    self._run_node(inner, {**values, node.var: value})
            return
        known = {name: _number(getattr(node, name), values) for name in ("i", "j", "k") if hasattr(node, name)}
        op = replace(node, **known)  # type: ignore[type-var]
        self._done.append(op)
        self._carry_out(op)

    def _carry_out(self, op: TileOp) -> None:
        match op:
            case Load(tile="C"):
                self._load(op)
            case Load():
                self._require_final(op)
                self._operands[op.tile] = self._tile(self._memory(op.source), op.i, op.j)
            case Store():
                self._store(op)
            case Potrf():
                self._potrf(op.k, op.size)
                self._c_is_final = True
            case Trsm():
                self._trsm(op)
                self._c_is_final = True
            case Syrk():
                self._multiply(self._operand(op.a), self._operand(op.a), op.size, op.size, op.inner, lower=True)
            case Gemm():
                self._multiply(self._operand(op.a), self._operand(op.b), op.rows, op.cols, op.inner, lower=False)

    def _memory(self, source: str) -> Array:
        return self._source if source == "a" else self._result

    def _tile(self, memory: Array, i: int, j: int) -> Array:
        """A view: operands are read from memory when they are used, not when they are named."""
        first_row, first_column = i * self.nb, j * self.nb
        return memory[:, first_row : first_row + self.nb, first_column : first_column + self.nb]

    def _operand(self, name: str) -> Array:
        return self._operands.get(name, np.full_like(self._c, np.nan))

    def _region(self, op: Load | Store) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        rows, columns = np.tril_indices(op.rows, 0, op.cols) if op.lower else _all_indices(op.rows, op.cols)
        return rows + op.i * self.nb, columns + op.j * self.nb

    def _load(self, op: Load) -> None:
        rows, columns = np.tril_indices(op.rows, 0, op.cols) if op.lower else _all_indices(op.rows, op.cols)
        if self.strict and op.source == "l" and not self.in_place and self._untouched(op):
            raise ProgramError(f"{op} reads a tile of the result that was never stored")
        self._c[:, rows, columns] = self._tile(self._memory(op.source), op.i, op.j)[:, rows, columns]
        self._c_is_final = False

    def _untouched(self, op: Load) -> bool:
        return bool((self._states[self._region(op)] == State.UNTOUCHED).any())

    def _require_final(self, op: Load) -> None:
        if self.strict and (op.source != "l" or (self._states[self._region(op)] != State.FINAL).any()):
            raise ProgramError(f"{op} names an operand that is not final")

    def _store(self, op: Store) -> None:
        rows, columns = self._region(op)
        if self.strict and (self._states[rows, columns] == State.FINAL).any():
            raise ProgramError(f"{op} overwrites what was final")
        self._result[:, rows, columns] = self._c[:, rows - op.i * self.nb, columns - op.j * self.nb]
        if (rows < len(self._states)).all() and (columns < len(self._states)).all():
            self._states[rows, columns] = State.FINAL if self._c_is_final else State.PARTIAL
            self._final_stores[rows, columns] += self._c_is_final

    def _potrf(self, k: int, size: int) -> None:
        c, reciprocals = self._c, self._reciprocals[:, k * self.nb :]
        for p in range(size):
            self._good += c[:, p, p] > 0
            root = np.sqrt(c[:, p, p])
            reciprocals[:, p] = 1 / root
            c[:, p, p] = root
            c[:, p + 1 : size, p] *= reciprocals[:, p, None]
            for j in range(p + 1, size):
                self._subtract(slice(j, size), j, c[:, j:size, p], c[:, j, p])

    def _trsm(self, op: Trsm) -> None:
        c, d, reciprocals = self._c, self._operand(op.a), self._reciprocals[:, op.k * self.nb :]
        rows = slice(0, op.rows)
        for p in range(op.cols):
            c[:, rows, p] *= reciprocals[:, p, None]
            for j in range(p + 1, op.cols):
                self._subtract(rows, j, c[:, rows, p], d[:, j, p])

    def _multiply(self, a: Array, b: Array, size: int, cols: int, inner: int, *, lower: bool) -> None:
        for p in range(inner):
            for j in range(cols):
                rows = slice(j if lower else 0, size)
                self._subtract(rows, j, self.operand(a[:, rows, p]), self.operand(b[:, j, p]))

    def _subtract(self, rows: slice, j: int, column: Array, factor: Array) -> None:
        self._c[:, rows, j] = self.multiply_subtract(self._c[:, rows, j], column, factor[:, None])


def _number(index: int | Var, values: Mapping[str, int]) -> int:
    return values[index.name] + index.offset if isinstance(index, Var) else index


def _all_indices(rows: int, cols: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return tuple(index.ravel() for index in np.indices((rows, cols)))  # type: ignore[return-value]
