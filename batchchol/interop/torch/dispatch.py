"""A shorter way through torch's dispatcher, for calls that need no gradient.

Of what an operator of Python takes the host, a second passage through the dispatcher is a third: from autograd to the
implementation. Where nothing but that would come after autograd, it is called at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Autograd:
    """Where `torch.library.register_autograd` puts the autograd of an operator, in place of the operator's library.

    `done_by` are the implementations, by the names of the dispatcher's keys.
    """

    library: Any
    done_by: Mapping[str, Callable[..., Any]]

    def impl(self, name: str, general: Callable[..., Any], key: str, *, with_keyset: bool) -> None:
        """Register what `general` does, done without it where no gradient is needed."""
        after = torch._C._after_autograd_keyset
        done_by = {getattr(torch._C.DispatchKey, key): each for key, each in self.done_by.items()}

        # By what the keys are to C++: working it out takes as long as the rest.
        found: dict[int, Callable[..., Any] | None] = {}

        def kernel(keyset: Any, *args: Any) -> Any:
            if not (torch.is_grad_enabled() and _wants_gradient(args)):
                keys = keyset.raw_repr()
                if keys not in found:
                    found[keys] = done_by.get((keyset & after).highestPriorityTypeId())
                if (done := found[keys]) is not None:
                    return done(*args)
            return general(keyset, *args)

        self.library.impl(name, kernel, key, with_keyset=with_keyset)


def _wants_gradient(args: tuple[Any, ...]) -> bool:
    """Whether a gradient of one of the tensors is wanted, which come first."""
    for arg in args:
        if not isinstance(arg, Tensor):
            return False
        if arg.requires_grad:
            return True
    return False
