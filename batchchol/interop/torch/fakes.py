"""What the operators return, without doing it: shapes, dtypes and devices, which tracing and compiling ask for."""

from __future__ import annotations

import torch
from torch import Tensor

from batchchol.interop.torch.batching import are_vectors


def cholesky(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor]:
    """Factors and info."""
    return a.new_empty(a.shape), _info(a)


def cholesky_repaired(
    a: Tensor, jitter: float, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Factors, info and what was added."""
    return a.new_empty(a.shape), _info(a), a.new_empty(a.shape[:-2])


def solve(
    a: Tensor, b: Tensor, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor]:
    """Solutions and info."""
    return cho_solve(a, b), _info(a)


def solve_repaired(
    a: Tensor, b: Tensor, jitter: float, upper: bool = False, math: str = "ieee", check: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Solutions, info and what was added."""
    return cho_solve(a, b), _info(a), a.new_empty(a.shape[:-2])


def cho_solve(L: Tensor, b: Tensor, upper: bool = False, math: str = "ieee") -> Tensor:
    """Solutions."""
    _check_matrices("L", L)
    vectors = are_vectors(b.shape, L.shape)
    order = b.shape[-1] if vectors else b.shape[-2]
    torch._check(order == L.shape[-1], lambda: f"b: got shape {tuple(b.shape)}")
    if vectors:
        return b.new_empty(L.shape[:-1])
    return b.new_empty((*torch.broadcast_shapes(L.shape[:-2], b.shape[:-2]), *b.shape[-2:]))


def cho_inverse(L: Tensor, upper: bool = False, math: str = "ieee") -> Tensor:
    """Inverses."""
    _check_matrices("L", L)
    return L.new_empty(L.shape)


def inv(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor]:
    """Inverses and info."""
    return a.new_empty(a.shape), _info(a)


def slogdet(a: Tensor, upper: bool = False, math: str = "ieee", check: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Signs, logarithms and info."""
    outer = a.shape[:-2]
    return a.new_empty(outer), a.new_empty(outer), _info(a)


def _info(a: Tensor) -> Tensor:
    _check_matrices("a", a)
    return a.new_empty(a.shape[:-2], dtype=torch.int32)


def _check_matrices(argument: str, a: Tensor) -> None:
    square = a.ndim >= 2 and a.shape[-1] == a.shape[-2]
    torch._check(square, lambda: f"{argument}: got shape {tuple(a.shape)}, expected square matrices (..., n, n)")
