"""The operations on a GPU: kernels on XLA's stream, with XLA's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

from batchchol.api import device_addresses as at
from batchchol.api.device_addresses import Case
from batchchol.backends.cuda import gpus
from batchchol.backends.cuda.device import number_at
from batchchol.interop.jax.xla import Execution


def cholesky(execution: Execution, upper: bool, math: str) -> None:
    """Factors and info."""
    _run(execution, at.factoring, _case(execution, upper, math))


def solve(execution: Execution, upper: bool, math: str) -> None:
    """Solutions and info."""
    _run(execution, at.solving, _case(execution, upper, math), execution.array(1).shape[-1])


def cho_solve(execution: Execution, upper: bool, math: str) -> None:
    """Solutions by factors."""
    _run(execution, at.substituting, _case(execution, upper, math), execution.array(1).shape[-1])


def inv(execution: Execution, upper: bool, math: str) -> None:
    """Inverses and info."""
    _run(execution, at.inverting, _case(execution, upper, math))


def cho_inverse(execution: Execution, upper: bool, math: str) -> None:
    """Inverses by factors, and room for info."""
    _run(execution, at.inverting_by_factors, _case(execution, upper, math))


def slogdet(execution: Execution, upper: bool, math: str) -> None:
    """Signs, logarithms and info."""
    _run(execution, at.taking_logarithms, _case(execution, upper, math))


def _run(execution: Execution, operation: Callable[..., at.Operation], *what: Any) -> None:
    """Queue an operation on what `what` says, on the GPU that XLA has the arrays on."""
    addresses, stream = execution.addresses, execution.stream()
    with gpus.on(_gpu_of(stream, addresses[0])):
        operation(*what)(execution.room)(stream, *addresses)


def _case(execution: Execution, upper: bool, math: str) -> Case:
    return _known_case(*execution.array(0)[1:], upper, math)


@lru_cache(maxsize=1024)
def _known_case(shape: tuple[int, ...], dtype: object, upper: bool, math: str) -> Case:
    return Case(shape[-1], prod(shape[:-2]), str(dtype), upper, math)


# By the stream: XLA has its own for each GPU, for as long as the process lives.
_gpus: dict[int, int] = {}


def _gpu_of(stream: int, address: int) -> int:
    """The number of the GPU of a stream, by an address there."""
    if stream not in _gpus:
        _gpus[stream] = number_at(address)
    return _gpus[stream]
