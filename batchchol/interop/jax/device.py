"""The operations on a GPU: kernels on XLA's stream, with XLA's memory."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from batchchol.api import device_addresses as at
from batchchol.api.device_addresses import Case, Place
from batchchol.interop.jax.xla import Execution


def cholesky(execution: Execution, upper: bool, math: str) -> None:
    """Factors and info."""
    at.factor(*_begun(execution, upper, math), *execution.addresses)


def solve(execution: Execution, upper: bool, math: str) -> None:
    """Solutions and info."""
    case, place = _begun(execution, upper, math)
    at.solve(case, execution.array(1).shape[-1], place, *execution.addresses)


def cho_solve(execution: Execution, upper: bool, math: str) -> None:
    """Solutions by factors."""
    case, place = _begun(execution, upper, math)
    at.solve_by_factors(case, execution.array(1).shape[-1], place, *execution.addresses)


def inv(execution: Execution, upper: bool, math: str) -> None:
    """Inverses and info."""
    at.invert(*_begun(execution, upper, math), *execution.addresses)


def cho_inverse(execution: Execution, upper: bool, math: str) -> None:
    """Inverses by factors, and room for info."""
    at.invert_by_factors(*_begun(execution, upper, math), *execution.addresses)


def slogdet(execution: Execution, upper: bool, math: str) -> None:
    """Signs, logarithms and info."""
    at.log_determinants(*_begun(execution, upper, math), *execution.addresses)


def _begun(execution: Execution, upper: bool, math: str) -> tuple[Case, Place]:
    return _case(execution.array(0)[1:], upper, math), Place(execution.stream(), execution.room)


@lru_cache(maxsize=1024)
def _case(matrices: tuple[tuple[int, ...], object], upper: bool, math: str) -> Case:
    shape, dtype = matrices
    return Case(shape[-1], prod(shape[:-2]), str(dtype), upper, math)
