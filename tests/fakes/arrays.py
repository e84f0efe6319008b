"""Arrays of CuPy and Numba where neither is, in the memory of the host, which is the fake GPU's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from .gpu import FakeGpu

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Memory:
    """CuPy's pointer to memory."""

    room: bytearray
    begin: int = 0

    def __add__(self, nbytes: int) -> Memory:
        return Memory(self.room, self.begin + nbytes)


class FakeArray:
    """An array of CuPy or Numba, in the memory of the host, which is the fake GPU's."""

    # What is current: the stream, and the GPU that arrays are made on.
    stream = device = 0
    gpu: FakeGpu

    def __init__(self, shape: tuple[int, ...], dtype: Any, over: Array | Memory | None = None) -> None:
        if isinstance(over, Memory):
            over = np.frombuffer(over.room, dtype, int(np.prod(shape)), over.begin).reshape(shape)
        self.host = np.full(shape, 7, dtype) if over is None else over
        self.gpu.other_gpus[self.host.ctypes.data] = self.device
        self.shape, self.dtype, self.ndim = self.host.shape, self.host.dtype, self.host.ndim
        self.data = SimpleNamespace(ptr=self.host.ctypes.data, device_id=self.device)
        self.flags, self.strides = self.host.flags, self.host.strides
        self.device_ctypes_pointer = SimpleNamespace(value=self.host.ctypes.data)

    def is_c_contiguous(self) -> bool:
        return bool(self.host.flags.c_contiguous)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self.is_c_contiguous() else self.host.strides
        place = {"data": (self.host.ctypes.data, False), "strides": strides, "stream": self.stream or None}
        return {"shape": self.shape, "typestr": self.dtype.str, "version": 3, **place}

    @classmethod
    def of(cls, other: Any) -> FakeArray:
        """A view of another library's array, which it keeps."""
        made = cls((), np.float32, other.get())
        made.other = other  # type: ignore[attr-defined]
        return made


class NoMemory(MemoryError):
    """CuPy's OutOfMemoryError."""


class CupyArray(FakeArray):
    """CuPy's."""


class NumbaArray(FakeArray):
    """Numba's."""


CupyArray.__module__, NumbaArray.__module__ = "cupy", "numba.cuda.cudadrv.devicearray"


@contextmanager
def on_stream(number: int) -> Iterator[None]:
    """CuPy's current stream."""
    CupyArray.stream = number
    try:
        yield
    finally:
        CupyArray.stream = 0


class OnGpu:
    """The GPU on which CuPy and Numba make arrays."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        self.before, FakeArray.device = FakeArray.device, self.number

    def __exit__(self, *_: object) -> None:
        FakeArray.device = self.before
