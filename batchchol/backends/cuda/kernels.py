"""Kernels that are loaded on a GPU: called for batches, or handed out as PyCUDA's functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from batchchol.artifacts.stats import CompileStats
from batchchol.backends.base import memory_of
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import Device
from batchchol.backends.cuda.launching.functions import Function
from batchchol.backends.cuda.launching.prepared import PreparedLaunch
from batchchol.batches.layouts import stride
from batchchol.errors import CompilerNotFound
from kernelgen import KernelSpec, Layout
from kernelgen.emit.operations.repair import generate_repairing


class PycudaFunction(NamedTuple):
    """A kernel as a `pycuda.driver.Function`, with what a launch for one batch takes.

    It is prepared for these arguments, of 64 bits each: the addresses of the matrices, of room for the factors (for a
    spec in place the same one) and of the info, then `stride` and `batch`:

        function.prepared_call(grid, block, a, l, info, stride, batch, shared_size=shared_bytes)

    `stride` is the distance between neighbouring elements of a matrix, `batch` how many matrices there are.
    """

    function: Any
    grid: tuple[int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stride: int
    batch: int


@dataclass(frozen=True)
class CudaKernel:
    """A loaded kernel; see `batchchol.backends.base.Kernel`."""

    spec: KernelSpec
    gpu: Device
    function: Function

    @property
    def stats(self) -> CompileStats:
        return self.function.stats

    @cached_property
    def repairing(self) -> Function | None:
        """The code of `generate_repairing`; None if there is none, or it cannot be built."""
        source = generate_repairing(self.spec)
        try:
            return None if source is None else self.gpu.load(source)
        except CompilerNotFound:
            return None

    def __call__(self, *arrays: Any, threads: int, stream: Any = None) -> None:
        words = self.words(*arrays)
        if stream is not None:
            memory.share(stream, *memory_of(self.spec.problem.operation, arrays))
        self.gpu.run(self.function, arrays[0].batch, words, stream)

    def launch(
        self, addresses: Sequence[int], nrhs: int, batch: int, layout: Layout, stream: Any = None, room: object = None
    ) -> None:
        """Queue the kernel for arguments at these addresses, which nothing is known of but that they are in memory.

        An operation without right-hand sides has an `nrhs` that is not used; no kernel takes `room` of its own.
        """
        columns = () if self.spec.problem.operation.columns is None else (nrhs,)
        self.gpu.run(self.function, batch, (*addresses, *columns, *self.geometry(batch, layout)), stream)

    def prepared(self, nrhs: int, batch: int, layout: Layout) -> PreparedLaunch:
        """`launch` laid out for many launches: called with a stream and the addresses."""
        operation = self.spec.problem.operation
        columns = () if operation.columns is None else (nrhs,)
        words = (*columns, *self.geometry(batch, layout))
        return self.gpu.prepared(self.function, batch, len(operation.arguments), words)

    def words(self, *arrays: Any) -> tuple[int, ...]:
        """The arguments of the code, 64 bits each.

        Raises
        ------
        ValueError
            If it is not the code for the batch's stride.
        """
        operation, first = self.spec.problem.operation, arrays[0]
        addresses = [int(array.gpudata or 0) for array in memory_of(operation, arrays)]
        columns = () if operation.columns is None else (arrays[operation.columns].shape[-1],)
        return *addresses, *columns, *self.geometry(first.batch, first.layout)

    def geometry(self, batch: int, layout: Layout) -> tuple[int, int]:
        """Where the matrices lie, the last of the arguments; errors are those of `words`."""
        apart, fixed = stride(batch, layout), self.spec.schedule.stride
        if fixed is not None and fixed != apart and self.spec.layout != "canonical":
            raise ValueError(f"spec: its code has a stride of {fixed}, expected {apart}, that of the batch")
        return apart, batch
