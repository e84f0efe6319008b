"""A NumPy interpreter of the tile program of a solve: the oracle of the generated code.

As that of factorizations (tests/interpreter.py) it carries out the operations in the order in which the microkernels
write them down, and keeps account of what became of each element of the solutions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kernelgen.programs.potrs import solve_program
from kernelgen.programs.tiles import Gemm, Load, Loop, Node, Store, TileOp, Trsm, resolve

from .interpreter import Array, MultiplySubtract, ProgramError, separate


class State(IntEnum):
    """What an element of the solutions is so far."""

    UNTOUCHED = 0
    FORWARD = 1
    SOLVED = 2


@dataclass(frozen=True)
class SolveInterpretation:
    """What a program did: the solutions (batch, n, nrhs), and its operations in their order."""

    x: Array
    operations: tuple[TileOp, ...]


def interpret_solve(
    l: Array,
    b: Array,
    nb: int,
    *,
    in_place: bool = False,
    program: Iterable[Node] | None = None,
    multiply_subtract: MultiplySubtract = separate,
    strict: bool = True,
) -> SolveInterpretation:
    """Solve by lower factors (batch, n, n) for (batch, n, nrhs), by the program of (n, nb, nrhs).

    With `in_place` the solutions are where the right-hand sides were. Unless it is `strict` any program runs, however
    wrong; what was never written reads as NaN.

    Raises
    ------
    ProgramError
        If an element is read before it is what the operation needs, is stored once too often, or is not solved for.
    """
    if program is None:
        program = solve_program(l.shape[-1], nb, b.shape[-1])
    return SolveMachine(l, b, nb, in_place, multiply_subtract, strict).run(program)


class SolveMachine:
    """The memory and the registers that a program works on; right-hand sides are rows, as they are there."""

    def __init__(
        self, l: Array, b: Array, nb: int, in_place: bool, multiply_subtract: MultiplySubtract, strict: bool
    ) -> None:
        batch, n, nrhs = b.shape
        # A wrong program may reach past the last tile: there is room for it, and nothing good in it.
        self._l = np.full((batch, n + 2 * nb, n + 2 * nb), np.nan, l.dtype)
        self._l[:, :n, :n] = np.where(np.tri(n, dtype=bool), l, np.nan)
        self._b = np.full((batch, nrhs, n + 2 * nb), np.nan, b.dtype)
        self._b[:, :, :n] = b.swapaxes(1, 2)
        self._x = self._b if in_place else np.full_like(self._b, np.nan)
        self._states = np.zeros(n, np.int8)
        self._c = np.full((batch, nrhs, nb), np.nan, b.dtype)
        # What the register tile holds, and whether it was divided by the diagonal.
        self._place, self._is_divided = -1, False
        self._operands: dict[str, tuple[Load, Array]] = {}
        self._nb, self._multiply_subtract, self._strict = nb, multiply_subtract, strict
        self._done: list[TileOp] = []

    def run(self, program: Iterable[Node]) -> SolveInterpretation:
        """Carry out a program from beginning to end."""
        with np.errstate(all="ignore"):
            for node in program:
                self._run_node(node, {})
        if self._strict and (self._states != State.SOLVED).any():
            raise ProgramError("some element is not solved for")
        x = self._x[:, :, : len(self._states)].swapaxes(1, 2)
        return SolveInterpretation(x, tuple(self._done))

    def _run_node(self, node: Node, values: Mapping[str, int]) -> None:
        if isinstance(node, Loop):
            first, last = resolve(node.start, values), resolve(node.stop, values) - 1
            value, step = (last, -1) if node.descending else (first, 1)
            while first <= value <= last:
                for inner in node.body:
                    self._run_node(inner, {**values, node.var: value})
                value += step
            return
        known = {name: resolve(getattr(node, name), values) for name in ("i", "j", "k") if hasattr(node, name)}
        op = replace(node, **known)  # type: ignore[arg-type]
        self._done.append(op)
        self._carry_out(op)

    def _carry_out(self, op: TileOp) -> None:
        match op:
            case Load(tile="C"):
                self._load(op)
            case Load():
                self._operands[op.tile] = (op, self._tile(op))
            case Store():
                self._store(op)
            case Trsm():
                self._trsm(op)
            case Gemm():
                self._gemm(op)
            case _:
                raise ProgramError(f"{op} is no operation of a solve")

    def _tile(self, op: Load) -> Array:
        """A view: operands are read from memory when they are used, not when they are named."""
        columns = slice(op.j * self._nb, (op.j + 1) * self._nb)
        if op.source == "l":
            return self._l[:, op.i * self._nb : (op.i + 1) * self._nb, columns]
        return (self._b if op.source == "b" else self._x)[:, :, columns]

    def _state_of(self, op: Load | Store) -> NDArray[np.int8]:
        return self._states[op.j * self._nb : op.j * self._nb + op.cols]

    def _require(self, good: bool | np.bool_, op: TileOp, what: str) -> None:
        if self._strict and not good:
            raise ProgramError(f"{op} {what}")

    def _load(self, op: Load) -> None:
        state = State.UNTOUCHED if op.source == "b" else State.FORWARD
        self._require((self._state_of(op) == state).all(), op, f"reads what is not {state.name.lower()}")
        self._require(op.first == (op.source == "b"), op, "has a wrong mark")
        self._c[:, :, : op.cols] = self._tile(op)[:, :, : op.cols]
        self._place, self._is_divided = op.j, False

    def _store(self, op: Store) -> None:
        self._require(self._is_divided and self._place == op.j, op, "stores what is not solved, or of another place")
        self._require((self._state_of(op) < State.SOLVED).all(), op, "overwrites a solution")
        self._x[:, :, op.j * self._nb : op.j * self._nb + op.cols] = self._c[:, :, : op.cols]
        self._state_of(op)[...] += 1

    def _gemm(self, op: Gemm) -> None:
        (given, a), (factor, b) = self._operands[op.a], self._operands[op.b]
        state = State.FORWARD if op.transposed else State.SOLVED
        self._require((self._state_of(given) == state).all(), op, f"has operands that are not {state.name.lower()}")
        inner = (factor.j, factor.i)[:: 1 if op.transposed else -1]
        self._require(inner == (given.j, self._place), op, f"multiplies by tile {factor.i, factor.j} of the factor")
        for p in range(op.inner):
            for j in range(op.cols):
                self._subtract(j, a[:, :, p], b[:, j, p] if op.transposed else b[:, p, j])

    def _trsm(self, op: Trsm) -> None:
        named, d = self._operands[op.a]
        self._require(named.i == named.j == op.k == self._place, op, f"divides by tile {named.i, named.j}")
        for p in range(op.cols) if op.transposed else reversed(range(op.cols)):
            self._c[:, :, p] *= (1 / d[:, p, p])[:, None]
            for j in range(p + 1, op.cols) if op.transposed else range(p):
                self._subtract(j, self._c[:, :, p], d[:, j, p] if op.transposed else d[:, p, j])
        self._is_divided = True

    def _subtract(self, j: int, column: Array, factor: Array) -> None:
        self._c[:, :, j] = self._multiply_subtract(self._c[:, :, j], column, factor[:, None])
