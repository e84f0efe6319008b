"""The operations on a GPU: kernels on XLA's stream, with XLA's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from batchchol.api.arrays import device_addresses as at
from batchchol.api.arrays.device_addresses import Case
from batchchol.backends.cuda import gpus
from batchchol.backends.cuda.device import number_at
from batchchol.backends.cuda.launching.prepared import PreparedLaunch
from batchchol.defaults.generation import generation
from batchchol.interop.jax.xla import Execution


def cholesky(execution: Execution, upper: bool, math: str) -> None:
    """Factors and info."""
    _run(at.factoring, execution, upper, math)


def solve(execution: Execution, upper: bool, math: str) -> None:
    """Solutions and info."""
    _run(at.solving, execution, upper, math, execution.shape(1)[-1])


def cho_solve(execution: Execution, upper: bool, math: str) -> None:
    """Solutions by factors."""
    _run(at.substituting, execution, upper, math, execution.shape(1)[-1])


def inv(execution: Execution, upper: bool, math: str) -> None:
    """Inverses and info."""
    _run(at.inverting, execution, upper, math)


def cho_inverse(execution: Execution, upper: bool, math: str) -> None:
    """Inverses by factors, and room for info."""
    _run(at.inverting_by_factors, execution, upper, math)


def slogdet(execution: Execution, upper: bool, math: str) -> None:
    """Signs, logarithms and info."""
    _run(at.taking_logarithms, execution, upper, math)


def _run(what: Callable[..., at.Operation], execution: Execution, upper: bool, math: str, *nrhs: int) -> None:
    """Queue an operation on the GPU that XLA has the arrays on."""
    addresses, stream = execution.addresses, execution.stream()
    gpu = _gpu_of(stream, addresses[0])
    with gpus.on(gpu):
        tables = generation()
        key = what, execution.shape(0), execution.dtype(0), upper, math, gpu, tables
        queue = _operation(*key, *nrhs)(execution.room)
        queue(stream, *addresses)
        if isinstance(queue, PreparedLaunch):
            execution.remember(queue, tables)


@lru_cache(maxsize=1024)
def _operation(
    what: Callable[..., at.Operation],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    upper: bool,
    math: str,
    gpu: int,
    _: object,
    *nrhs: int,
) -> at.Operation:
    return what(Case(shape[-1], prod(shape[:-2]), dtype.name, upper, math), *nrhs)


# By the stream: XLA has its own for each GPU, for as long as the process lives.
_gpus: dict[int, int] = {}


def _gpu_of(stream: int, address: int) -> int:
    """The number of the GPU of a stream, by an address there."""
    if stream not in _gpus:
        _gpus[stream] = number_at(address)
    return _gpus[stream]
