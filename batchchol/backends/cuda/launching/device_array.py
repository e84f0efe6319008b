"""Arrays in device memory for where PyCUDA is not: what the library uses of its GPUArray, under the same names."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray


class _Flags(NamedTuple):
    """As of NumPy's arrays."""

    c_contiguous: bool = True


class DeviceArray:
    """A C-contiguous array on a GPU, which CuPy, torch and Numba take without a copy.

    Attributes
    ----------
    shape, dtype, size, nbytes, ndim, flags
        As of NumPy's arrays.
    gpudata : int or None
        Where it begins; it keeps the memory, unless `base` does.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, gpudata: Any = None, base: Any = None) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.gpudata, self.base = gpudata, base
        self.size, self.ndim = prod(self.shape), len(self.shape)
        self.nbytes, self.flags = self.size * self.dtype.itemsize, _Flags()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        place = (int(self.gpudata or 0), False)
        return {"shape": self.shape, "typestr": self.dtype.str, "data": place, "strides": None, "version": 3}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> DeviceArray:
        """Some rows that follow each other, in the same memory."""
        first, last, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"rows: got {rows}, expected rows that follow each other")
        apart = self.nbytes // max(len(self), 1)
        address = int(self.gpudata or 0) + first * apart
        return DeviceArray((max(last - first, 0), *self.shape[1:]), self.dtype, address, self)

    def reshape(self, *shape: Any) -> DeviceArray:
        """The same memory in another shape, in which one -1 stands for what is left."""
        wanted = shape[0] if isinstance(shape[0], tuple) else shape
        rest = self.size // max(prod(each for each in wanted if each != -1), 1)
        whole = tuple(rest if each == -1 else each for each in wanted)
        if prod(whole) != self.size:
            raise ValueError(f"shape: got {wanted}, expected one of {self.size} elements")
        return DeviceArray(whole, self.dtype, int(self.gpudata or 0), self)

    def get(self) -> NDArray[Any]:
        """A copy on the host; waits for the default stream."""
        from batchchol.backends.cuda.launching import without_pycuda

        host = np.empty(self.shape, self.dtype)
        if self.size:
            without_pycuda.memcpy_dtoh(host, int(self.gpudata or 0))
        return host
