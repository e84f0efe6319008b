"""Repair on a GPU: what `batchchol.api.repairs` says, by a kernel that runs after the one whose failures it repairs.

Nothing is waited for, and where nothing failed the kernel ends at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from batchchol.api.repairs import GROWTH, TRIES, first_multiple
from batchchol.backends.base import Form


@dataclass(frozen=True)
class Repair:
    """Matrices (..., n, n), at an address where they stay as they are, their info, and what is added to each.

    `share` is the multiple of the mean diagonal that is tried first.
    """

    share: float
    a: int
    form: Form
    upper: bool
    info: Any
    added: Any

    @classmethod
    def of(cls, jitter: Any, a: int, form: Form, upper: bool, info: Any) -> Self:
        """What `jitter` asks for matrices whose info is being found out."""
        from batchchol.backends.cuda import memory

        dtype = np.dtype(form.dtype)
        added = memory.empty(info.shape, dtype, "what is added to the diagonals")
        return cls(first_multiple(jitter, dtype), a, form, upper, info, added)

    def queue(self, *, l: int = 0, b: int = 0, x: int = 0, nrhs: int = 0, stream: Any = None) -> None:
        """Have those that failed tried again, once what has been queued until now has told which.

        `l` is the address of an array (..., n, n) in rows, where their factors go; `b` and `x`, which do not overlap,
        those of their right-hand sides and solutions, (..., n, nrhs). What is not needed has the address 0.
        """
        from batchchol.backends.cuda import memory, support
        from batchchol.backends.cuda.device import device

        if stream is not None:
            memory.share(stream, self.added)
        form, status = self.form, (int(self.info.gpudata), int(self.added.gpudata))
        support.repair(
            device(),
            (self.a, l, b, x, *status),
            form.n,
            nrhs,
            form.batch,
            form.layout,
            form.dtype,
            uplo="upper" if self.upper else "lower",
            schedule=(self.share, GROWTH, TRIES),
            stream=stream,
        )


def nothing_added(outer: tuple[int, ...], dtype: str) -> Any:
    """What was added to the diagonals of no matrices, or of matrices without elements."""
    from batchchol.backends.cuda import memory

    return memory.to_device(np.zeros(outer, dtype), "what is added to the diagonals")
