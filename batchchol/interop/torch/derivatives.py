"""Derivatives of the operators, in terms of operators that have derivatives themselves: so there are second ones.

The formulas are the textbook's (Murray, "Differentiation of the Cholesky decomposition", arXiv:1602.07527; Giles,
"Collected matrix derivative results for forward and reverse mode algorithmic differentiation", 2008). Gradients of
symmetric matrices are symmetric, whichever triangle was read; what jitter added is taken for a constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _save_factors(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.upper, ctx.unused = inputs[-3], (None,) * (len(inputs) - 1)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(output[0])


def _factors(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    """Of A = L L^T: L^-T sym(phi(L^T grad)) L^-1, where phi takes the lower triangle and half of the diagonal."""
    if grad is None:
        return None, *ctx.unused
    (l,) = ctx.saved_tensors
    if ctx.upper:
        l, grad = l.mT, grad.mT
    p = (l.mT @ grad).tril()
    # Half of the diagonal on either side: sym(phi(p)) = (tril(p) + tril(p, -1)^T) / 2.
    s = (p + p.tril(-1).mT) / 2
    half = torch.linalg.solve_triangular(l.mT, s, upper=True)
    return torch.linalg.solve_triangular(l, half, upper=False, left=False), *ctx.unused


def _save_solutions(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    a, b, *_ = inputs
    x, *rest = output
    ctx.how, ctx.shape, ctx.unused = inputs[-3:-1], b.shape, (None,) * (len(inputs) - 2)
    ctx.mark_non_differentiable(*rest)
    ctx.save_for_backward(a, x, *rest[1:])


def _solutions(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    """Of x = A^-1 b: A^-1 grad for b, and -sym(that times x^T) for A."""
    if grad is None:
        return None, None, *ctx.unused
    a, x, *added = ctx.saved_tensors
    if added:
        a = a + torch.diag_embed(added[0].unsqueeze(-1).expand(a.shape[:-1]))
    to_b, _ = torch.ops.batchchol.solve(a, grad, *ctx.how)
    to_a = -_symmetric(_products(to_b, x, a)).sum_to_size(a.shape) if ctx.needs_input_grad[0] else None
    return to_a, to_b.sum_to_size(ctx.shape), *ctx.unused


def _save_solutions_by_factors(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    l, b, *ctx.how = inputs
    ctx.shape = b.shape
    ctx.save_for_backward(l, output)


def _solutions_by_factors(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Of x = L^-T L^-1 b: A^-1 grad for b, and by the chain rule -tril((s + s^T) L) for L, s that times x^T."""
    l, x = ctx.saved_tensors
    upper = ctx.how[0]
    to_b = torch.ops.batchchol.cho_solve(l, grad, *ctx.how)
    to_l = None
    if ctx.needs_input_grad[0]:
        s = 2 * _symmetric(_products(to_b, x, l)).sum_to_size(l.shape)
        to_l = -(l @ s).triu() if upper else -(s @ l).tril()
    return to_l, to_b.sum_to_size(ctx.shape), None, None


def _save_inverses_by_factors(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    l, ctx.upper, _ = inputs
    ctx.save_for_backward(l, output)


def _inverses_by_factors(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """As of A^-1, and by the chain rule from A to L."""
    l, inverse = ctx.saved_tensors
    s = 2 * (inverse @ _symmetric(grad) @ inverse)
    return -(l @ s).triu() if ctx.upper else -(s @ l).tril(), None, None


def _save_inverses(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[0])


def _inverses(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    """Of A^-1: -A^-1 sym(grad) A^-1."""
    if grad is None:
        return None, None, None, None
    (inverse,) = ctx.saved_tensors
    return -(inverse @ _symmetric(grad) @ inverse), None, None, None


def _save_matrices(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    a, *ctx.how, _ = inputs
    ctx.mark_non_differentiable(output[0], output[2])
    ctx.save_for_backward(a)


def _log_determinants(ctx: Any, _: Any, grad: Tensor | None, *__: Any) -> tuple[Any, ...]:
    """Of log det A: A^-1."""
    if grad is None:
        return None, None, None, None
    (a,) = ctx.saved_tensors
    inverse, _info = torch.ops.batchchol.inv(a, *ctx.how)
    return grad[..., None, None] * inverse, None, None, None


def _products(to_b: Tensor, x: Tensor, a: Tensor) -> Tensor:
    """to_b x^T, of solutions by matrices: vectors have fewer axes than these."""
    return to_b[..., :, None] * x[..., None, :] if x.ndim < a.ndim else to_b @ x.mT


def _symmetric(a: Tensor) -> Tensor:
    return (a + a.mT) / 2


# By operator: what is kept of a call, and the gradients of its arguments by those of its results.
DERIVATIVES = {
    "cholesky": (_save_factors, _factors),
    "cholesky_repaired": (_save_factors, _factors),
    "solve": (_save_solutions, _solutions),
    "solve_repaired": (_save_solutions, _solutions),
    "cho_solve": (_save_solutions_by_factors, _solutions_by_factors),
    "cho_inverse": (_save_inverses_by_factors, _inverses_by_factors),
    "inv": (_save_inverses, _inverses),
    "slogdet": (_save_matrices, _log_determinants),
}
