"""The results of the calls that never raise because of the matrices' values, with what else they are asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

from batchchol.batches.batch import Batch


class Cholesky(NamedTuple):
    """Dense factors, (..., n, n), and the info of each matrix, (...), int32: where the matrices were."""

    L: Any
    info: Any


class RepairedCholesky(NamedTuple):
    """`Cholesky`, and what was added to the diagonal of each matrix, (...), of the matrices' dtype."""

    L: Any
    info: Any
    added: Any


class CholeskyLogDeterminant(NamedTuple):
    """`Cholesky`, and the logarithm of the determinant of each matrix, (...), of the matrices' dtype."""

    L: Any
    info: Any
    logabsdet: Any


class RepairedCholeskyLogDeterminant(NamedTuple):
    """`RepairedCholesky`, and the logarithm of the determinant of each matrix with what was added to it."""

    L: Any
    info: Any
    added: Any
    logabsdet: Any


class Factor(NamedTuple):
    """A factored batch and the info of each matrix, (batch,), int32: where the batch lives."""

    L: Batch
    info: Any


class FactorLogDeterminant(NamedTuple):
    """`Factor`, and the logarithm of the determinant of each matrix, (batch,), of the matrices' dtype."""

    L: Batch
    info: Any
    logabsdet: Any


class Solution(NamedTuple):
    """Solutions, and the info of each matrix, int32: where the matrices were."""

    x: Any
    info: Any


class RepairedSolution(NamedTuple):
    """`Solution`, and what was added to the diagonal of each matrix, of the matrices' dtype."""

    x: Any
    info: Any
    added: Any


class SolutionLogDeterminant(NamedTuple):
    """`Solution`, and the logarithm of the determinant of each matrix, of the matrices' dtype."""

    x: Any
    info: Any
    logabsdet: Any


class RepairedSolutionLogDeterminant(NamedTuple):
    """`RepairedSolution`, and the logarithm of the determinant of each matrix with what was added to it."""

    x: Any
    info: Any
    added: Any
    logabsdet: Any


class FactoredSolution(NamedTuple):
    """`Solution`, and the dense factor of each matrix, (..., n, n)."""

    x: Any
    info: Any
    L: Any


class RepairedFactoredSolution(NamedTuple):
    """`RepairedSolution`, and the dense factor of each matrix with what was added to it, (..., n, n)."""

    x: Any
    info: Any
    added: Any
    L: Any


class Inverse(NamedTuple):
    """Inverses, (..., n, n), and the info of each matrix, (...), int32: where the matrices were."""

    inverse: Any
    info: Any


class RepairedInverse(NamedTuple):
    """`Inverse`, and what was added to the diagonal of each matrix, (...), of the matrices' dtype."""

    inverse: Any
    info: Any
    added: Any


class InverseLogDeterminant(NamedTuple):
    """`Inverse`, and the logarithm of the determinant of each matrix, (...), of the matrices' dtype."""

    inverse: Any
    info: Any
    logabsdet: Any


class RepairedInverseLogDeterminant(NamedTuple):
    """`RepairedInverse`, and the logarithm of the determinant of each matrix with what was added to it."""

    inverse: Any
    info: Any
    added: Any
    logabsdet: Any


AnyCholesky = Cholesky | RepairedCholesky | CholeskyLogDeterminant | RepairedCholeskyLogDeterminant
AnySolution = (
    Solution
    | RepairedSolution
    | SolutionLogDeterminant
    | RepairedSolutionLogDeterminant
    | FactoredSolution
    | RepairedFactoredSolution
)
AnyInverse = Inverse | RepairedInverse | InverseLogDeterminant | RepairedInverseLogDeterminant


def cholesky_of(l: Any, info: Any, added: Any = None, logabsdet: Any = None) -> AnyCholesky:
    """Factors, and what there is besides."""
    if logabsdet is None:
        return Cholesky(l, info) if added is None else RepairedCholesky(l, info, added)
    if added is None:
        return CholeskyLogDeterminant(l, info, logabsdet)
    return RepairedCholeskyLogDeterminant(l, info, added, logabsdet)


def solution_of(x: Any, info: Any, added: Any = None, logabsdet: Any = None) -> AnySolution:
    """Solutions, and what there is besides."""
    if logabsdet is None:
        return Solution(x, info) if added is None else RepairedSolution(x, info, added)
    if added is None:
        return SolutionLogDeterminant(x, info, logabsdet)
    return RepairedSolutionLogDeterminant(x, info, added, logabsdet)


def inverse_of(inverse: Any, info: Any, added: Any = None, logabsdet: Any = None) -> AnyInverse:
    """Inverses, and what there is besides."""
    if logabsdet is None:
        return Inverse(inverse, info) if added is None else RepairedInverse(inverse, info, added)
    if added is None:
        return InverseLogDeterminant(inverse, info, logabsdet)
    return RepairedInverseLogDeterminant(inverse, info, added, logabsdet)
