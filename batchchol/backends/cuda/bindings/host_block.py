"""A square block of a GPU's matrix in page-locked memory of the host, by CuPy's binding of the CUDA runtime."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.backends.cuda.bindings.cublas import cupy_cuda
from batchchol.backends.cuda.device import Device

# cudaMemcpyKind.
_TO_DEVICE, _TO_HOST = 1, 2


class HostBlock:
    """Room for blocks up to an order; copies are queued on a stream, whose address is given.

    Raises
    ------
    BatchcholError
        If CuPy cannot be imported; says how to get it.
    """

    def __init__(self, order: int, dtype: str) -> None:
        cuda = cupy_cuda()
        self._runtime, self._dtype = cuda.runtime, np.dtype(dtype)
        # Whether a block of the matrix that is being factored has failed.
        self.failed = False
        self._memory = cuda.alloc_pinned_memory(order * order * self._dtype.itemsize)

    def fetch(self, address: int, order: int, leading: int, stream: int) -> NDArray[Any]:
        """A block from an address, `leading` elements between its rows, in this room; waits for it."""
        width = order * self._dtype.itemsize
        pitch = leading * self._dtype.itemsize
        self._runtime.memcpy2DAsync(self._memory.ptr, width, address, pitch, width, order, _TO_HOST, stream)
        self._runtime.streamSynchronize(stream)
        return np.frombuffer(self._memory, self._dtype, order * order).reshape(order, order)

    def put(self, address: int, order: int, leading: int, stream: int) -> None:
        """Queue the copy of the block to an address; the block must stay as it is until that is done."""
        width = order * self._dtype.itemsize
        pitch = leading * self._dtype.itemsize
        self._runtime.memcpy2DAsync(address, pitch, self._memory.ptr, width, width, order, _TO_DEVICE, stream)


@cache
def host_block(gpu: Device, order: int, dtype: str) -> HostBlock:
    """The room for blocks of a GPU's matrices, kept: copies from it may outlast the call that queued them."""
    return HostBlock(order, dtype)
