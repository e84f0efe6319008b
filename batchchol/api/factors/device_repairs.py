"""Repair on a GPU: what `batchchol.api.repairs` says, without waiting.

Kernels that factor arrays, or factor and solve at once, do it themselves where a thread has a matrix. Behind others
runs a kernel that ends at once where nothing failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from batchchol.api.repairs import GROWTH, TRIES, first_multiple
from batchchol.backends.base import Form


@dataclass(frozen=True)
class Repair:
    """Matrices (..., n, n), at an address where they stay as they are, their info, and what is added to each.

    `first` is the multiple of the mean diagonal that is tried first.
    """

    first: float
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

    def solve(self, kernel: Any, addresses: Sequence[int], nrhs: int, stream: Any = None) -> Any:
        """Queue a kernel that solves for right-hand sides, by the matrices or their factors, and what repairs.

        `addresses` are the kernel's arguments. The right-hand sides may be overwritten if it is `repairs_itself`.

        Returns
        -------
        GPUArray or None
            What the kernel's `launch` returns.
        """
        from batchchol.backends.cuda import memory

        form = self.form
        if not repairs_itself(kernel):
            with kernel.gpu.queueing():
                workspace = kernel.launch(addresses, nrhs, form.batch, form.layout, stream)
                logdet = addresses[3] if kernel.spec.problem.operation.multiplies else 0
                self.queue(b=addresses[1], x=addresses[2], logdet=logdet, nrhs=nrhs, stream=stream)
            return workspace
        if stream is not None:
            memory.share(stream, self.added)
        run_repairing(kernel, (*addresses, int(self.added.gpudata)), nrhs, form, self.first, stream)
        return None

    def factor(self, kernel: Any, l: int, *logdet: int) -> None:
        """Queue a kernel that `repairs_itself`; `l` is where factors go, an array (..., n, n) in rows.

        `logdet` is where the logarithms of determinants go, if the kernel finds any.
        """
        addresses = (self.a, l, *logdet, int(self.info.gpudata), int(self.added.gpudata))
        run_repairing(kernel, addresses, None, self.form, self.first)

    def queue(
        self, *, l: int = 0, b: int = 0, x: int = 0, logdet: int = 0, nrhs: int = 0, stream: Any = None
    ) -> None:
        """Have those that failed tried again by a kernel of its own, behind what told which.

        `l` is the address of an array (..., n, n) in rows, where factors go; `b` and `x` are those of right-hand
        sides and solutions, (..., n, nrhs), and may be the same; `x` without `b` is that of inverses, and `logdet`
        that of logarithms of determinants. What is not needed has the address 0.
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
            multiples=(self.first, GROWTH, TRIES),
            logdet=logdet,
            stream=stream,
        )


def repairs_itself(kernel: Any) -> bool:
    """Whether a kernel has code that repairs: it needs its right-hand sides no more than without."""
    return getattr(kernel, "repairing", None) is not None


def run_repairing(
    kernel: Any, addresses: Sequence[int], nrhs: int | None, form: Form, first: float, stream: Any = None
) -> None:
    """Queue a kernel that `repairs_itself`; `addresses` are its arguments, and that of room for what was added.

    `nrhs` is None where there are no right-hand sides.
    """
    multiples = int(np.float64(first).view(np.int64)), GROWTH, TRIES
    columns = () if nrhs is None else (nrhs,)
    words = (*addresses, *columns, *kernel.geometry(form.batch, form.layout), *multiples)
    kernel.gpu.run(kernel.repairing, form.batch, words, stream)


def nothing_added(outer: tuple[int, ...], dtype: str) -> Any:
    """What was added to the diagonals of no matrices, or of matrices without elements."""
    from batchchol.backends.cuda import memory

    return memory.to_device(np.zeros(outer, dtype), "what is added to the diagonals")
