"""Batches of rectangular matrices in the memory of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from batchchol.backends.cuda import gpus, memory, support
from batchchol.backends.cuda.batches.batch import DeviceBatch
from batchchol.backends.cuda.device import device
from batchchol.batches.batch import Batch, check_dtype, element_dtype
from batchchol.batches.checks import check_unmasked
from batchchol.batches.layouts import array_shape, padded, stride
from batchchol.batches.rectangular import RectangularBatch, check_rectangles
from kernelgen import Layout

# The layout that QR kernels were measured in.
PACKED = Layout.chunked(32)


@dataclass(frozen=True, eq=False, repr=False)
class DeviceRectangularBatch(RectangularBatch):
    """`batch` matrices of m x n in one array on the GPU; see `RectangularBatch`.

    `data` is a pycuda.gpuarray.GPUArray. Dense arrays go in from the host or from the device, and come out as
    GPUArrays. All is queued on the default stream.
    """

    backend: ClassVar[str] = "cuda"

    @staticmethod
    def _check_data(data: Any) -> None:
        if not hasattr(data, "gpudata"):
            raise TypeError(f"data: got {type(data).__name__}, expected a pycuda.gpuarray.GPUArray: use from_dense")

    @classmethod
    def empty(cls, m: int, n: int, batch: int, layout: Layout | None = None, dtype: DTypeLike = "float32") -> Self:
        element, layout = element_dtype("dtype", dtype), layout or PACKED
        shape = array_shape(n, batch, layout, m)
        return cls(memory.empty(shape, element, f"a batch of shape {shape}"), m, n, batch, layout)

    @classmethod
    def from_dense(cls, a: Any, layout: Layout | None = None) -> Self:
        """Copy an array of shape (batch, m, n), of the host or the device, into a layout, by default chunks of 32."""
        check_unmasked("a", a)
        check_rectangles(tuple(a.shape))
        if memory.is_device_array(a):
            dense = memory.as_gpuarray(a, "a")
            check_dtype("a", dense.dtype)
        else:
            host = np.asarray(a)
            dense = memory.to_device(host.astype(check_dtype("a", host.dtype), copy=False), "matrices")
        count, m, n = dense.shape
        packed = cls.empty(m, n, count, layout, dense.dtype)
        packed.fill(dense)
        return packed

    @cached_property
    def address(self) -> int:
        """Where the array begins in the GPU's memory."""
        return int(self.data.gpudata or 0)

    @cached_property
    def gpu(self) -> int:
        """The number of the GPU."""
        return memory.gpu_of(self.data)

    def like(self) -> Self:
        with gpus.on(self.gpu):
            return super().like()

    def to_dense(self) -> Any:
        """All matrices as a new GPUArray of shape (batch, m, n) in row order."""
        with gpus.on(self.gpu):
            dense = memory.empty((self.batch, self.m, self.n), self.dtype, "an array of matrices")
            chunk = max(1, stride(self.batch, self.layout))
            sides = (self.n * chunk, chunk) if self.layout.order == "row" else (chunk, self.m * chunk)
            whole, rest = divmod(self.batch, chunk)
            for first, chunks, each in ((0, whole, chunk), (whole * chunk, 1, rest)):
                if chunks * each:
                    at = first * self._matrix * self.dtype.itemsize
                    sizes, steps = (chunks, each, self.m, self.n), (chunk * self._matrix, 1, *sides)
                    support.gather(
                        device(), self.address + at, int(dense.gpudata) + at, sizes, steps, self.dtype_name
                    )
        return dense

    def squares(self) -> Batch:
        with gpus.on(self.gpu):
            target = DeviceBatch.empty(self.n, self.batch, self.layout, self.dtype)
            if self.batch:
                runs, wide, narrow = self._runs()
                places = device(), self.address, target.address
                support.part(*places, (1, wide), (1, narrow), runs, self.dtype_name)
        return target.marked("upper")

    def packed(self, dense: Any) -> Batch | Self:
        with gpus.on(self.gpu):
            square = dense.shape[1] == dense.shape[2]
            return (DeviceBatch if square else type(self)).from_dense(dense, self.layout)

    @property
    def _matrix(self) -> int:
        """Elements of a matrix."""
        return self.m * self.n

    def fill(self, dense: Any) -> None:
        """Write all matrices, with zeros behind them, from a GPUArray of shape (batch, m, n)."""
        room, chunk = padded(self.batch, self.layout), stride(self.batch, self.layout)
        if not room:
            return
        if room != self.batch:
            dense = self._with_zeros(dense, room)
        sides = ((self.m, self.n), (self.n, 1)) if self.layout.order == "row" else ((self.n, self.m), (1, self.n))
        sizes = (room // chunk, *sides[0], chunk)
        steps = (chunk * self._matrix, *sides[1], self._matrix)
        support.gather(device(), int(dense.gpudata), self.address, sizes, steps, self.dtype_name)

    def _with_zeros(self, dense: Any, room: int) -> Any:
        """As many matrices as there is room for, the last ones zero."""
        longer = memory.empty((room, self.m, self.n), self.dtype, f"an array of {room:,} matrices")
        zeros = memory.to_device(np.zeros((room - self.batch, self.m, self.n), self.dtype), "zeros")
        start = int(longer.gpudata)
        for source, target in ((dense, start), (zeros, start + dense.nbytes)):
            if source.nbytes:
                support.copy(device(), int(source.gpudata), target, source.nbytes)
        return longer
