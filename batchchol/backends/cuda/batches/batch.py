"""Batches in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.backends.cuda import gpus, memory, support
from batchchol.backends.cuda.device import device
from batchchol.batches.batch import Batch, check_dtype, check_stack, dtype_name, element_dtype
from batchchol.batches.checks import check_unmasked, integer
from batchchol.batches.layouts import LARGER, array_shape, checked_sizes, padded
from batchchol.defaults import lookup
from kernelgen import CUDA, MAX_N, Layout
from kernelgen.emit.panels.panel import triangle

Method = TypeVar("Method", bound=Callable[..., Any])


def _there(method: Method) -> Method:
    """A batch's method that uses the GPU of the batch."""

    @wraps(method)
    def called(self: DeviceBatch, *args: Any, **named: Any) -> Any:
        with gpus.on(self.gpu):
            return method(self, *args, **named)

    return cast(Method, called)


@dataclass(frozen=True, eq=False, repr=False)
class DeviceBatch(Batch):
    """`batch` matrices of order `n` in one array on the GPU; see `Batch`.

    `data` is a pycuda.gpuarray.GPUArray. Through its CUDA array interface torch and CuPy use it without a copy, and
    `DeviceBatch.over` makes a batch of an array of theirs without one. Dense arrays go in from the host or from the
    device, and come out as GPUArrays. All is queued on the default stream.
    """

    data: Any
    backend: ClassVar[str] = "cuda"
    # They limit the memory of dense copies.
    _slice_bytes: ClassVar[int] = 1 << 28

    @staticmethod
    def _check_data(data: Any) -> None:
        if not hasattr(data, "gpudata"):
            raise TypeError(
                f"data: got {type(data).__name__}, expected a pycuda.gpuarray.GPUArray: make a batch with "
                "DeviceBatch.empty, from_dense or over"
            )

    @classmethod
    def empty(cls, n: int, batch: int, layout: Layout | None = None, dtype: DTypeLike = "float32") -> Self:
        element = element_dtype("dtype", dtype)
        n, batch = checked_sizes(n, batch)
        layout = default_layout(n, element, batch) if layout is None else layout
        shape = array_shape(n, batch, layout)
        made = cls(memory.empty(shape, element, f"a batch of shape {shape}"), n, batch, layout)
        if padded(batch, layout) != batch:
            support.identity_padding(device(), made.address, n, batch, layout, element.name)
        return made

    @classmethod
    def from_dense(cls, a: Any, layout: Layout | None = None) -> Self:
        """Copy an array of shape (batch, n, n), of the host or the device, into a layout, by default the fastest."""
        _check_array(a, "a")
        check_stack(a.shape)
        dense = _on_device(a, "a")
        packed = cls.empty(dense.shape[1], dense.shape[0], layout, dense.dtype)
        packed.put(0, dense)
        return packed

    @classmethod
    def over(cls, a: Any, n: int, batch: int, layout: Layout) -> Self:
        """A batch in the memory of a device array (torch's, CuPy's, ...) whose shape is the layout's; no copy."""
        return cls(memory.as_gpuarray(a, "a"), n, batch, layout)

    @cached_property
    def address(self) -> int:
        """Where the array begins in the GPU's memory."""
        return int(self.data.gpudata or 0)

    @property
    def writeable(self) -> bool:
        return True

    @cached_property
    def gpu(self) -> int:
        """The number of the GPU."""
        return memory.gpu_of(self.data)

    def like(self, triangle: str | None = None) -> Self:
        if self.gpu != gpus.first():
            with gpus.on(self.gpu):
                return self.like(triangle)
        # Not `empty`, which checks what this batch's own making has checked.
        data = memory.empty(self.data.shape, self.data.dtype, "room for the factors")
        made = object.__new__(type(self))
        made.__dict__.update(data=data, n=self.n, batch=self.batch, layout=self.layout, triangle=triangle)
        if padded(self.batch, self.layout) != self.batch:
            support.identity_padding(device(), made.address, self.n, self.batch, self.layout, self.dtype_name)
        return made

    @_there
    def copy(self) -> Self:
        data = memory.empty(self.data.shape, self.dtype, "a copy of a batch")
        memory.copy_on_device(self.data, data)
        return replace(self, data=data)

    @_there
    def put(self, start: int, dense: Any) -> None:
        """Write matrices start, start + 1, ... from an array of shape (count, n, n), of the host or the device."""
        _check_array(dense, "dense")
        matrices = _on_device(dense, "dense")
        self._check_dense(tuple(matrices.shape), matrices.dtype)
        start = integer("start", start)
        slots = self._slots(start, start + int(matrices.shape[0]))
        if self.n > MAX_N:
            matrix = self.n**2 * self.dtype.itemsize
            support.copy(device(), int(matrices.gpudata), self.address + slots.first * matrix, matrices.nbytes)
        elif slots.first < slots.last:
            support.pack(
                device(),
                int(matrices.gpudata),
                self.address,
                self.n,
                self.batch,
                self.layout,
                self.dtype_name,
                first=slots.first,
                last=slots.last,
            )

    @_there
    def get(self, start: int, stop: int) -> Any:
        """Matrices start, ..., stop - 1 as a new GPUArray of shape (stop - start, n, n) in row order."""
        slots = self._slots(start, stop)
        shape = (slots.last - slots.first, self.n, self.n)
        dense = memory.empty(shape, self.dtype, f"an array of shape {shape}")
        if slots.first < slots.last:
            self.unpack_to(int(dense.gpudata), slots.first, slots.last)
        return dense

    @_there
    def unpack_to(self, address: int, start: int, stop: int) -> None:
        """Write matrices start, ..., stop - 1 to a place on the device, (stop - start, n, n) in row order."""
        if self.n > MAX_N:
            self._copy_to(address, start, stop)
            return
        support.unpack(
            device(),
            self.address,
            address,
            self.n,
            self.batch,
            self.layout,
            self.dtype_name,
            first=start,
            last=stop,
            clear=self.cleared,
        )

    def _copy_to(self, address: int, start: int, stop: int) -> None:
        """The same for matrices of orders that kernels are not for, which lie as they are to be."""
        matrix = self.n**2 * self.dtype.itemsize
        source, clear = self.address + start * matrix, self.cleared
        if clear is None:
            support.copy(device(), source, address, (stop - start) * matrix)
            return
        # The lower triangle of columns is the upper one of rows.
        kernel = triangle(self.dtype_name, "row" if clear == "upper" else "col")
        device().launch(kernel, (stop - start) * self.n, (source, address, self.n))

    @_there
    def to_host(self) -> Batch:
        """A copy in the host's memory, in the same layout."""
        return Batch(memory.to_host(self.data), self.n, self.batch, self.layout, self.triangle)


def default_layout(
    n: int, dtype: DTypeLike = "float32", batch: int | None = None, math: str | None = None, op: str = "potrf"
) -> Layout:
    """The layout in which this GPU factors large batches of matrices of order `n` fastest, or those of this size.

    In one math, or by default in both together; by an operation such as "gesv".
    """
    gpu, named = device(), dtype_name(element_dtype("dtype", dtype))
    if n > MAX_N:
        return LARGER
    where = {"target": CUDA.name, "arch": gpu.architecture, "device": gpu.model}
    return lookup.default_layout(n, dtype=named, batch=batch, math=math, op=op, **where)


def _check_array(a: Any, argument: str) -> None:
    if not isinstance(a, np.ndarray) and not memory.is_device_array(a):
        raise TypeError(
            f"{argument}: got {type(a).__name__}, expected an array of matrices: NumPy's, or one on a GPU"
        )
    check_unmasked(argument, a)


def _on_device(a: NDArray[Any] | Any, argument: str) -> Any:
    """An array as a GPUArray of native byte order: a host's copied, a device's as it is."""
    if memory.is_device_array(a):
        array = memory.as_gpuarray(a, argument)
        check_dtype(argument, array.dtype)
        return array
    host = a.astype(check_dtype(argument, a.dtype), copy=False)
    return memory.to_device(host, f"an array of shape {a.shape}")
