"""Factoring and solving by two kernels of a GPU, a slice of the batch at a time.

The factors of a slice are in a workspace, which the next slice uses again: few batches have more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import numpy as np

from batchchol.artifacts.stats import CompileStats
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import Device
from batchchol.backends.cuda.kernels import CudaKernel
from batchchol.batches.layouts import array_shape
from kernelgen import KernelSpec, Layout
from kernelgen.gpu import WARP
from kernelgen.targets import ELEMENT_BYTES

# The memory that the factors of a slice may take. Slices whose factors stay in the cache leave multiprocessors idle
# while their first blocks load and their last ones end: on an H200 the whole took 44 to 81% of their time (n = 48 and
# 64).
WORKSPACE_BYTES = 4 << 30
_INFO_BYTES = np.dtype(np.int32).itemsize


@dataclass(frozen=True)
class FactorThenSolve:
    """A kernel of "potrf", out of place, and one of "potrs" for its factors, called as one of "posv".

    The factors of a slice of the batch take no more than `workspace_bytes`, or are a chunk.
    """

    factor: CudaKernel
    solve: CudaKernel
    workspace_bytes: int = WORKSPACE_BYTES

    @property
    def gpu(self) -> Device:
        """The GPU that it runs on."""
        return self.solve.gpu

    @property
    def stats(self) -> CompileStats:
        """What compiling the kernel that solves took."""
        return self.solve.stats

    @property
    def spec(self) -> KernelSpec:
        """The spec of the kernel that solves."""
        return self.solve.spec

    def __call__(self, *arrays: Any, threads: int, stream: Any = None) -> None:
        """Queue it for a batch, right-hand sides, room for solutions and for the info; see `backends.base.Kernel`."""
        a, b, x, info = arrays
        if stream is not None:
            memory.share(stream, a.data, b, x, info)
        addresses = (a.address, *(int(array.gpudata or 0) for array in (b, x, info)))
        kept = self.launch(addresses, b.shape[-1], a.batch, a.layout, stream)
        if stream is not None:
            info.__dict__["workspace"] = kept

    def launch(
        self,
        addresses: Sequence[int],
        nrhs: int,
        batch: int,
        layout: Layout,
        stream: Any = None,
        room: Callable[[int, str], int] | None = None,
    ) -> Any:
        """Queue it for matrices, right-hand sides, room for solutions and for the info, at these addresses.

        `room` allocates a number of bytes, for a stated purpose, that the stream may use; by default from the pool.

        Returns
        -------
        GPUArray, int or None
            The workspace. On another stream than the default one it has to live until the work is done, unless it is
            that stream's.

        Raises
        ------
        OutOfMemory
            If there is no room for the workspace.
        """
        if not batch:
            return None
        n, itemsize = self.spec.problem.n, ELEMENT_BYTES[self.spec.problem.dtype]
        a, b, x, info = addresses
        step = self.step(batch, layout)
        shape, dtype = array_shape(n, min(step, batch), layout), np.dtype(self.spec.problem.dtype)
        purpose = f"the factors of {min(step, batch):,} matrices"
        if room is not None:
            workspace = factors = room(prod(shape) * itemsize, purpose)
        else:
            workspace = memory.empty((prod(shape),), dtype, purpose)
            if stream is not None:
                memory.share(stream, workspace)
            factors = int(workspace.gpudata)
        with self.factor.gpu.queueing():
            for first, size in slices(batch, step):
                matrix, column = first * n * n * itemsize, first * n * nrhs * itemsize
                factored = (a + matrix, factors, info + first * _INFO_BYTES)
                self.factor.launch(factored, 0, size, layout, stream)
                self.solve.launch((factors, b + column, x + column), nrhs, size, layout, stream)
        return workspace

    def step(self, batch: int, layout: Layout) -> int:
        """Matrices of a slice: as many as the workspace has room for.

        Those of the interleaved layout are as far apart as the batch is large, and make one slice.
        """
        if layout.kind == "interleaved":
            return batch
        n, itemsize = self.spec.problem.n, ELEMENT_BYTES[self.spec.problem.dtype]
        whole = lcm(layout.chunk or 1, WARP)
        most = max(self.workspace_bytes // (n * n * itemsize) // whole, 1) * whole
        # Slices of one size, as far as whole chunks allow.
        return -(-batch // (-(-batch // most) * whole)) * whole


def slices(batch: int, step: int) -> Iterator[tuple[int, int]]:
    """The first matrix of each slice, and how many it has."""
    return ((first, min(step, batch - first)) for first in range(0, batch, step))
