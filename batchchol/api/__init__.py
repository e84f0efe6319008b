"""The public calls: factorizations and solves of arrays and batches."""

from batchchol.api.factorizations import Cholesky, Factor, cholesky, cholesky_ex, factor
from batchchol.api.solves import Solution, cho_solve, solve, solve_ex

__all__ = ["Cholesky", "Factor", "Solution", "cho_solve", "cholesky", "cholesky_ex", "factor", "solve", "solve_ex"]
