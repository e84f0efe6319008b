"""The public calls: factorizations and solves of arrays and batches."""

from batchchol.api.determinants import LogDeterminant, slogdet, slogdet_ex
from batchchol.api.factorizations import Cholesky, Factor, RepairedCholesky, cholesky, cholesky_ex, factor
from batchchol.api.inverses import Inverse, cho_inverse, inv, inv_ex
from batchchol.api.least_squares import LeastSquares, lstsq, lstsq_ex
from batchchol.api.log_determinants import LogDeterminantInfo
from batchchol.api.lu import LU, LUInfo, lu_factor, lu_factor_ex, lu_solve
from batchchol.api.qr_factorizations import QR, Reflectors, qr
from batchchol.api.reflections import ormqr
from batchchol.api.solves import RepairedSolution, Solution, SolutionLogDeterminant, cho_solve, solve, solve_ex

__all__ = [
    "LU",
    "QR",
    "Cholesky",
    "Factor",
    "Inverse",
    "LUInfo",
    "LeastSquares",
    "LogDeterminant",
    "LogDeterminantInfo",
    "Reflectors",
    "RepairedCholesky",
    "RepairedSolution",
    "Solution",
    "SolutionLogDeterminant",
    "cho_inverse",
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
