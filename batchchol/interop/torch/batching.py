"""How the operators are done for tensors with a further axis of `torch.func.vmap`: it is one of the batch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def rule(name: str) -> Callable[..., tuple[Any, Any]]:
    """The rule of an operator."""

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        axes = in_dims[: len(tensors)]
        ranks = [t.ndim - (axis is not None) for t, axis in zip(tensors, axes, strict=True)]
        given = [_in_front(t, axis, max(ranks)) for t, axis in zip(tensors, axes, strict=True)]
        found = getattr(torch.ops.batchchol, name)(*given, *args[len(tensors) :])
        if axes[0] is None and isinstance(found, tuple):
            # What there is one of for each matrix does not vary along the axis.
            return found, (0, *(None for _ in found[1:]))
        beyond = max(ranks) - ranks[0]
        if beyond and isinstance(found, tuple):
            # The axes of 1 that matrices were given, to be broadcast, are none of their info's.
            found = (found[0], *(each.flatten(0, beyond) for each in found[1:]))
        return found, tuple(0 for _ in found) if isinstance(found, tuple) else 0

    return batched


def _in_front(t: Tensor, axis: int | None, rank: int) -> Tensor:
    """A tensor with the axis first and `rank` others behind it, so that it is broadcast as if that were not there."""
    if axis is None:
        return t
    moved = t.movedim(axis, 0)
    return moved.reshape(moved.shape[0], *(1,) * (rank + 1 - t.ndim), *moved.shape[1:])
