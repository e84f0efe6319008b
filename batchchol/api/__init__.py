"""The public calls: factorizations and solves of arrays and batches."""

from batchchol.api.factorizations import Cholesky, Factor, cholesky, cholesky_ex, factor
from batchchol.api.solves import cho_solve

__all__ = ["Cholesky", "Factor", "cho_solve", "cholesky", "cholesky_ex", "factor"]
