"""How the operators are done for tensors with a further axis of `torch.func.vmap`: it is one of the batch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def are_vectors(b: Any, a: Any) -> bool:
    """Whether right-hand sides of a shape are a vector for each matrix of another, as `batchchol.solve` has it."""
    return len(b) == 1 or bool(b == a[:-1])


def rule(name: str) -> Callable[..., tuple[Any, Any]]:
    """The rule of an operator."""

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        a, *sides = [arg for arg in args if isinstance(arg, Tensor)]
        axis, shape = in_dims[0], _shape(a, in_dims[0])
        columns = [_in_front(b, its) for b, its in zip(sides, in_dims[1:], strict=False)]
        vectors = any(are_vectors(b.shape[1:], shape) for b in columns)
        if vectors:
            columns = [b.unsqueeze(-1) for b in columns]
        rank = max(len(shape), *(b.ndim - 1 for b in columns), 0)
        matrices = a if axis is None else _padded(_in_front(a, axis), rank)
        # With more axes than the matrices, right-hand sides are not taken for a vector each.
        given = (matrices, *(_padded(b, rank) for b in columns), *args[1 + len(sides) :])
        found = getattr(torch.ops.batchchol, name)(*given)
        first, *others = found if isinstance(found, tuple) else (found,)
        first = first.squeeze(-1) if vectors else first
        if isinstance(found, Tensor):
            return first, 0
        if axis is None:
            # What there is one of for each matrix does not vary along the axis.
            return (first, *others), (0, *(None for _ in others))
        if beyond := rank - len(shape):
            # The axes of 1 that matrices were given, to be broadcast, are none of their info's.
            others = [each.flatten(0, beyond) for each in others]
        return (first, *others), tuple(0 for _ in found)

    return batched


def _shape(t: Tensor, axis: int | None) -> tuple[int, ...]:
    """A tensor's shape without the axis."""
    return tuple(size for each, size in enumerate(t.shape) if each != axis)


def _in_front(t: Tensor, axis: int | None) -> Tensor:
    """A tensor with the axis first, of size 1 if it lacks that."""
    return t.unsqueeze(0) if axis is None else t.movedim(axis, 0)


def _padded(t: Tensor, rank: int) -> Tensor:
    """A tensor with `rank` axes behind its first one: it is broadcast as if that were not there."""
    return t.reshape(t.shape[0], *(1,) * (rank + 1 - t.ndim), *t.shape[1:])
