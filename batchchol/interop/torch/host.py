"""The operators on the CPU: the API's calls on the tensors' memory, which NumPy's arrays share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from batchchol import api
from batchchol.interop.torch.failures import check_tensor, raise_here

Results = tuple[Tensor, ...]


def cholesky(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> Results:
    """Factors and info."""
    matrices = _array("a", a)
    found = api.cholesky_ex(matrices, upper=upper, backend="cpu", math=math)
    return _results(found, matrices, upper, "cholesky_ex", check)


def cholesky_repaired(
    a: Tensor, jitter: float, upper: bool = False, math: str = "ieee", check: bool = False
) -> Results:
    """Factors, info and what was added."""
    matrices = _array("a", a)
    found = api.cholesky_ex(matrices, upper=upper, backend="cpu", math=math, jitter=jitter)
    return _results(found, matrices, upper, "cholesky_ex", check)


def solve(a: Tensor, b: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> Results:
    """Solutions and info."""
    matrices = _array("a", a)
    found = api.solve_ex(matrices, _array("b", b), upper=upper, backend="cpu", math=math)
    return _results(found, matrices, upper, "solve_ex", check)


def solve_repaired(
    a: Tensor, b: Tensor, jitter: float, upper: bool = False, math: str = "ieee", check: bool = False
) -> Results:
    """Solutions, info and what was added."""
    matrices = _array("a", a)
    found = api.solve_ex(matrices, _array("b", b), upper=upper, backend="cpu", math=math, jitter=jitter)
    return _results(found, matrices, upper, "solve_ex", check)


def cho_solve(L: Tensor, b: Tensor, upper: bool = False, math: str = "ieee") -> Tensor:
    """Solutions."""
    return _tensor(api.cho_solve(_array("L", L), _array("b", b), upper=upper, backend="cpu", math=math))


def cho_inverse(L: Tensor, upper: bool = False, math: str = "ieee") -> Tensor:
    """Inverses."""
    return _tensor(api.cho_inverse(_array("L", L), upper=upper, backend="cpu", math=math))


def inv(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> Results:
    """Inverses and info."""
    matrices = _array("a", a)
    found = api.inv_ex(matrices, upper=upper, backend="cpu", math=math)
    return _results(found, matrices, upper, "inv_ex", check)


def slogdet(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> Results:
    """Signs, logarithms and info."""
    matrices = _array("a", a)
    found = api.slogdet_ex(matrices, upper=upper, backend="cpu", math=math)
    return _results(found, matrices, upper, "slogdet_ex", check)


def _array(argument: str, a: Tensor) -> NDArray[Any]:
    check_tensor(argument, a)
    array: NDArray[Any] = a.numpy(force=True)
    return array


def _results(found: Any, a: NDArray[Any], upper: bool, instead: str, check: bool) -> Results:
    """What a call found, as tensors; it is refused if matrices failed and the caller wants that."""
    if check:
        raise_here(found.info, a, upper, instead)
    return tuple(map(_tensor, found))


def _tensor(result: NDArray[Any]) -> Tensor:
    # Not `ascontiguousarray`, which has one axis at least.
    return torch.from_numpy(np.asarray(result, order="C"))
