"""The operations on a CPU: the API's calls on the memory of XLA's arrays."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol import api
from batchchol.interop.jax.xla import Buffer, Execution


def cholesky(execution: Execution, upper: bool, math: str) -> None:
    """Factors and info."""
    a, l, info = map(_array, execution.arrays)
    info[...] = api.cholesky_ex(a, out=l, upper=upper, math=math, backend="cpu").info


def solve(execution: Execution, upper: bool, math: str) -> None:
    """Solutions and info."""
    a, b, x, info = map(_array, execution.arrays)
    info[...] = api.solve_ex(a, b, out=x, upper=upper, math=math, backend="cpu").info


def cho_solve(execution: Execution, upper: bool, math: str) -> None:
    """Solutions by factors."""
    l, b, x = map(_array, execution.arrays)
    api.cho_solve(l, b, out=x, upper=upper, math=math, backend="cpu")


def inv(execution: Execution, upper: bool, math: str) -> None:
    """Inverses and info."""
    a, inverse, info = map(_array, execution.arrays)
    info[...] = api.inv_ex(a, out=inverse, upper=upper, math=math, backend="cpu").info


def cho_inverse(execution: Execution, upper: bool, math: str) -> None:
    """Inverses by factors, and zeros in place of info."""
    l, inverse, info = map(_array, execution.arrays)
    api.cho_inverse(l, out=inverse, upper=upper, math=math, backend="cpu")
    info[...] = 0


def slogdet(execution: Execution, upper: bool, math: str) -> None:
    """Signs, logarithms and info."""
    a, *results = map(_array, execution.arrays)
    found = api.slogdet_ex(a, upper=upper, math=math, backend="cpu")
    for result, each in zip(results, found, strict=True):
        result[...] = each


def _array(buffer: Buffer) -> NDArray[Any]:
    """A buffer as NumPy's array, in its memory."""
    nbytes = prod(buffer.shape) * buffer.dtype.itemsize
    memory: Any = (ctypes.c_char * nbytes).from_address(buffer.address)
    return np.ndarray(buffer.shape, buffer.dtype, memory)
