"""How kernels split numbers for tensor cores, which multiply 11 significant bits, in two: heads and tails."""

from __future__ import annotations

from kernelgen.problem import Problem

# What a product loses at most if heads are cut off, not rounded, in u = 2^-24 of it: 16 are the product of the tails,
# which are of 13 bits, and twice 6 are the last two of these, which tensor cores cut off in turn.
_CUT = 28
# What it may come to, in units of the bounds of docs/accuracy.md, (n + 1) u and (3 n + 1) u: the promises are 1.5
# and 1 of these, and what was measured of all other errors is less than what is left.
_MOST, _MOST_OF_SOLUTIONS = 1.0, 0.5


def rounds_heads(problem: Problem, *, solves: bool = False) -> bool:
    """Whether heads are rounded to nearest, which costs an instruction each, rather than cut off.

    Bounds grow with the order, so that from some order on `ieee` keeps its promise with heads cut off. A kernel that
    also `solves` by tensor cores loses three times as much.
    """
    if problem.math == "fast":
        return False
    if not problem.operation.has_columns:
        return _MOST * (problem.n + 1) < _CUT
    return _MOST_OF_SOLUTIONS * (3 * problem.n + 1) < (3 * _CUT if solves else _CUT)
