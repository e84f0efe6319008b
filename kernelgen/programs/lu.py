"""The programs of getrf, getrs and gesv: P A = L U with partial pivoting, column by column.

A right-looking elimination (Golub and Van Loan, Matrix Computations, 3.4). The pivot is searched first and then
exchanged, as LAPACK does it, so that of elements of one size both choose the same. LAPACK exchanges whole rows, those
of L too. Where L is not written they stay where they are, as LINPACK has it: right-hand sides are then exchanged and
eliminated from step by step.
"""

from __future__ import annotations

from kernelgen.programs.columns import Divide, Eliminate, Exchange, Mark, Pivot, Reduce, Scale
from kernelgen.programs.tiles import Loop, Node, Var


def factor_program(n: int, *, whole: bool, rhs: int = 0) -> tuple[Node, ...]:
    """The factorization of an n x n matrix; with `whole`, whole rows are exchanged.

    Unless they are, `rhs` right-hand sides are eliminated from beside the matrix.
    """
    k = Var("k")
    matrix = Loop("j", 0 if whole else k, n, (Exchange("x", Var("j"), k),))
    beside = tuple(Exchange("y", c, k) for c in range(rhs))
    below = Loop("j", k + 1, n, (Eliminate("x", Var("j"), k),))
    eliminated = tuple(Eliminate("y", c, k) for c in range(rhs))
    return (Loop("k", 0, n, (Pivot(k), Mark(k), matrix, *beside, Scale(k), below, *eliminated)),)


def forward_program(n: int, rhs: int, *, whole: bool) -> tuple[Node, ...]:
    """Y = L^-1 P B by the factors of `factor_program`, for `rhs` right-hand sides."""
    k = Var("k")
    exchanges: tuple[Node, ...] = (Mark(k), *(Exchange("y", c, k) for c in range(rhs)))
    eliminations: tuple[Node, ...] = tuple(Eliminate("y", c, k) for c in range(rhs))
    if whole:
        return Loop("k", 0, n, exchanges), Loop("k", 0, n, eliminations)
    return (Loop("k", 0, n, (*exchanges, *eliminations)),)


def backward_program(n: int, rhs: int) -> tuple[Node, ...]:
    """X = U^-1 Y, for `rhs` right-hand sides."""
    k = Var("k")
    steps: list[Node] = []
    for c in range(rhs):
        steps += [Divide("y", c, k), Reduce("y", c, k)]
    return (Loop("k", 0, n, tuple(steps), descending=True),)
