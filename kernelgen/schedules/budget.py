"""How much straight-line code a kernel may have, and how much it has."""

from __future__ import annotations

from kernelgen.problem import Problem

# One multiply-add is one line of straight-line code, and compile time grows faster than that: this is n up to 33.
FULL_UNROLL_BUDGET = 6_600


def general_operations(problem: Problem) -> int:
    """Lines of the straight-line code of a factorization of a general matrix."""
    m, n = problem.rows, problem.n
    return m * n * min(m, n) if problem.operation.rectangular else (n**3 - n) // 3 + n**2


def straight_line_operations(n: int) -> int:
    """Multiply-adds, scalings and square roots of one factorization: the lines of its straight-line code."""
    return (n**3 - n) // 6 + n * (n + 1) // 2
