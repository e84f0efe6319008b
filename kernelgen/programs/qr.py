"""The programs of geqrf, orgqr, ormqr and gels: A = Q R by Householder reflectors, column by column.

LAPACK's unblocked geqr2 and org2r (Golub and Van Loan, Matrix Computations, 5.2): reflector k is I - tau v v^T, v
being 1 in row k and lying below R in column k.
"""

from __future__ import annotations

from kernelgen.programs.columns import Apply, Reflect, Unit
from kernelgen.programs.tiles import Loop, Node, Var


def factor_program(m: int, n: int, rhs: int = 0) -> tuple[Node, ...]:
    """The factorization of an m x n matrix, whose reflectors are applied to `rhs` right-hand sides beside it."""
    k = Var("k")
    right = Loop("j", k + 1, n, (Apply("x", Var("j"), k),))
    beside = tuple(Apply("y", c, k) for c in range(rhs))
    return (Loop("k", 0, min(m, n), (Reflect(k), right, *beside)),)


def project_program(count: int, rhs: int) -> tuple[Node, ...]:
    """Y = Q^T B by `count` reflectors, for `rhs` right-hand sides; `lu.backward_program` solves for the rest."""
    k = Var("k")
    return (Loop("k", 0, count, tuple(Apply("y", c, k) for c in range(rhs))),)


def generate_program(n: int) -> tuple[Node, ...]:
    """The first n columns of Q in place of its reflectors."""
    k = Var("k")
    right = Loop("j", k + 1, n, (Apply("x", Var("j"), k),))
    return (Loop("k", 0, n, (right, Unit(k)), descending=True),)
