"""The public calls: factorizations and solves of arrays and batches."""

from batchchol.api.determinants import LogDeterminant, slogdet, slogdet_ex
from batchchol.api.factors.factorizations import cholesky, cholesky_ex, factor
from batchchol.api.inverses.inverses import cho_inverse, cho_inverse_ex, inv, inv_ex
from batchchol.api.lu import LU, LUInfo, lu_factor, lu_factor_ex, lu_solve
from batchchol.api.rectangular.least_squares import LeastSquares, lstsq, lstsq_ex
from batchchol.api.rectangular.qr_factorizations import QR, Reflectors, qr
from batchchol.api.rectangular.reflections import ormqr
from batchchol.api.results import (
    Cholesky,
    CholeskyLogDeterminant,
    Factor,
    FactoredSolution,
    FactorLogDeterminant,
    Inverse,
    InverseLogDeterminant,
    RepairedCholesky,
    RepairedCholeskyLogDeterminant,
    RepairedFactoredSolution,
    RepairedInverse,
    RepairedInverseLogDeterminant,
    RepairedSolution,
    RepairedSolutionLogDeterminant,
    Solution,
    SolutionLogDeterminant,
)
from batchchol.api.solves.log_determinants import LogDeterminantInfo
from batchchol.api.solves.solves import cho_solve, solve, solve_ex

__all__ = [
    "LU",
    "QR",
    "Cholesky",
    "CholeskyLogDeterminant",
    "Factor",
    "FactorLogDeterminant",
    "FactoredSolution",
    "Inverse",
    "InverseLogDeterminant",
    "LUInfo",
    "LeastSquares",
    "LogDeterminant",
    "LogDeterminantInfo",
    "Reflectors",
    "RepairedCholesky",
    "RepairedCholeskyLogDeterminant",
    "RepairedFactoredSolution",
    "RepairedInverse",
    "RepairedInverseLogDeterminant",
    "RepairedSolution",
    "RepairedSolutionLogDeterminant",
    "Solution",
    "SolutionLogDeterminant",
    "cho_inverse",
    "cho_inverse_ex",
    "cho_solve",
    "cholesky",
    "cholesky_ex",
    "factor",
    "inv",
    "inv_ex",
    "lstsq",
    "lstsq_ex",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "ormqr",
    "qr",
    "slogdet",
    "slogdet_ex",
    "solve",
    "solve_ex",
]
