"""Batched Cholesky factorizations and solves of huge numbers of tiny SPD matrices (n = 1 ... 128).

`cholesky`, `solve` and `cho_solve` take and return NumPy arrays; `factor` works on a `Batch` in its own layout,
without packing, and so do `solve` and `cho_solve`.
"""

from batchchol import _former
from batchchol.api import (
    LU,
    QR,
    Cholesky,
    Factor,
    Inverse,
    LeastSquares,
    LogDeterminant,
    LogDeterminantInfo,
    LUInfo,
    Reflectors,
    RepairedCholesky,
    RepairedSolution,
    Solution,
    SolutionLogDeterminant,
    cho_inverse,
    cho_solve,
    cholesky,
    cholesky_ex,
    factor,
    inv,
    inv_ex,
    lstsq,
    lstsq_ex,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    ormqr,
    qr,
    slogdet,
    slogdet_ex,
    solve,
    solve_ex,
)
from batchchol.backends import get_backend
from batchchol.batches.batch import Batch
from batchchol.defaults.lookup import default_spec
from batchchol.errors import BatchcholError, NoCompilerWarning
from kernelgen import (
    BlockSchedule,
    KernelSpec,
    Layout,
    Problem,
    SharedSchedule,
    SpecError,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
)

__version__ = "0.1.0"

_former.install()

__all__ = [
    "LU",
    "QR",
    "Batch",
    "BatchcholError",
    "BlockSchedule",
    "Cholesky",
    "Factor",
    "Inverse",
    "KernelSpec",
    "LUInfo",
    "Layout",
    "LeastSquares",
    "LogDeterminant",
    "LogDeterminantInfo",
    "NoCompilerWarning",
    "Problem",
    "Reflectors",
    "RepairedCholesky",
    "RepairedSolution",
    "SharedSchedule",
    "Solution",
    "SolutionLogDeterminant",
    "SpecError",
    "StripSchedule",
    "ThreadSchedule",
    "WarpSchedule",
    "cho_inverse",
    "cho_solve",
    "cholesky",
    "cholesky_ex",
    "default_spec",
    "factor",
    "get_backend",
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
