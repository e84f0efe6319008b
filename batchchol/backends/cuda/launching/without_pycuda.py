"""What the library uses of PyCUDA's `driver`, over libcuda alone: for where PyCUDA, which has no wheels, is not.

Names are PyCUDA's, and so is what they do; `device_array` has arrays. Errors have the driver's words.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.backends.cuda.launching.driver import LIBRARY

_OUT_OF_MEMORY = 2
_Handle = ctypes.c_void_p

device_attribute = SimpleNamespace(
    CLOCK_RATE=13,
    MULTIPROCESSOR_COUNT=16,
    MEMORY_CLOCK_RATE=36,
    L2_CACHE_SIZE=38,
    MAX_THREADS_PER_MULTIPROCESSOR=39,
    COMPUTE_CAPABILITY_MAJOR=75,
    COMPUTE_CAPABILITY_MINOR=76,
)
func_cache = SimpleNamespace(PREFER_SHARED=1, PREFER_L1=2)
function_attribute = SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES=8)


class Error(Exception):
    """A call that the driver refused."""


class LogicError(Error):
    """PyCUDA's."""


class MemoryError(Error):
    """There is not as much memory."""


def _load() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        # As importing PyCUDA does.
        raise ImportError(str(error)) from error


_cuda = _load()


def _call(name: str, *arguments: Any) -> None:
    """Call the driver, whose arguments are integers of 64 bits or ctypes'."""
    function = getattr(_cuda, name)
    status = function(*[ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments])
    if status:
        text = ctypes.c_char_p()
        _cuda.cuGetErrorString(status, ctypes.byref(text))
        kind = MemoryError if status == _OUT_OF_MEMORY else LogicError
        raise kind(f"{name} failed: {(text.value or b'unknown error').decode()}")


def _got(name: str, *arguments: Any, kind: Any = _Handle) -> int:
    """What a call writes to its first argument."""
    found = kind()
    _call(name, ctypes.byref(found), *arguments)
    return int(found.value or 0)


def init() -> None:
    """Initialise the driver."""
    _call("cuInit", 0)


def get_driver_version() -> int:
    """The version of CUDA that the driver is for, such as 13000."""
    return _got("cuDriverGetVersion", kind=ctypes.c_int)


class Context:
    """A context, by its handle."""

    def __init__(self, handle: int, device: int = 0) -> None:
        self.handle, self._device = handle, device

    def push(self) -> None:
        """Make it current in this thread."""
        _call("cuCtxPushCurrent_v2", self.handle)

    @staticmethod
    def pop() -> None:
        """Make the one before current again."""
        _got("cuCtxPopCurrent_v2")

    @staticmethod
    def get_current() -> Context | None:
        """The one that is current in this thread."""
        handle = _got("cuCtxGetCurrent")
        return Context(handle) if handle else None

    def detach(self) -> None:
        """Need the GPU's primary context no longer."""
        _call("cuDevicePrimaryCtxRelease_v2", self._device)


class Device:
    """A GPU, by its number."""

    def __init__(self, number: int) -> None:
        self._device = _got("cuDeviceGet", number, kind=ctypes.c_int)

    @staticmethod
    def count() -> int:
        """How many there are."""
        return _got("cuDeviceGetCount", kind=ctypes.c_int)

    def name(self) -> str:
        """The name, such as "NVIDIA H200"."""
        return self._text("cuDeviceGetName")

    def pci_bus_id(self) -> str:
        """The address on the PCI bus."""
        return self._text("cuDeviceGetPCIBusId")

    def _text(self, question: str) -> str:
        room = ctypes.create_string_buffer(256)
        _call(question, room, len(room), self._device)
        return room.value.decode()

    def total_memory(self) -> int:
        """Bytes of its memory."""
        return _got("cuDeviceTotalMem_v2", self._device, kind=ctypes.c_size_t)

    def get_attribute(self, attribute: int) -> int:
        """One of `device_attribute`."""
        return _got("cuDeviceGetAttribute", attribute, self._device, kind=ctypes.c_int)

    def compute_capability(self) -> tuple[int, int]:
        """The compute capability, such as (9, 0)."""
        found = device_attribute
        return self.get_attribute(found.COMPUTE_CAPABILITY_MAJOR), self.get_attribute(found.COMPUTE_CAPABILITY_MINOR)

    def retain_primary_context(self) -> Context:
        """The context that all libraries share."""
        return Context(_got("cuDevicePrimaryCtxRetain", self._device), self._device)


class DeviceAllocation:
    """Memory of the GPU, until it is freed."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        """Give it back, once all work on the GPU is done."""
        _call("cuMemFree_v2", self._address)


def mem_alloc(nbytes: int) -> DeviceAllocation:
    """Allocate bytes of the GPU's memory."""
    return DeviceAllocation(_got("cuMemAlloc_v2", nbytes))


def mem_get_info() -> tuple[int, int]:
    """Bytes of the GPU's memory that are free, and all."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def memcpy_htod(target: int, source: NDArray[Any]) -> None:
    """Copy a contiguous array of the host to the GPU."""
    _call("cuMemcpyHtoD_v2", int(target), source.ctypes.data, source.nbytes)


def memcpy_dtoh(target: NDArray[Any], source: int) -> None:
    """Copy from the GPU into a contiguous array of the host."""
    _call("cuMemcpyDtoH_v2", target.ctypes.data, int(source), target.nbytes)


def memcpy_htod_async(target: int, source: NDArray[Any], stream: Stream) -> None:
    """Queue the copy of an array of the host, pinned, to the GPU."""
    _call("cuMemcpyHtoDAsync_v2", int(target), source.ctypes.data, source.nbytes, stream.handle)


def memcpy_dtoh_async(target: NDArray[Any], source: int, stream: Stream) -> None:
    """Queue the copy from the GPU into an array of the host, pinned."""
    _call("cuMemcpyDtoHAsync_v2", target.ctypes.data, int(source), target.nbytes, stream.handle)


def memcpy_dtod_async(target: int, source: int, nbytes: int) -> None:
    """Queue a copy on the GPU, on the default stream."""
    _call("cuMemcpyDtoDAsync_v2", int(target), int(source), nbytes, 0)


class _Pinned:
    """Pinned memory of the host."""

    def __init__(self, nbytes: int) -> None:
        self._address = _got("cuMemHostAlloc", max(nbytes, 1), 0)
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self._address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        # The context may have gone, and the memory with it.
        _cuda.cuMemFreeHost(ctypes.c_uint64(self._address))


def pagelocked_empty(shape: int, dtype: DTypeLike) -> NDArray[Any]:
    """An uninitialised array of one axis in pinned memory of the host."""
    element = np.dtype(dtype)
    return np.asarray(_Pinned(shape * element.itemsize)).view(element)


class Stream:
    """A stream that waits for the default one, which waits for it."""

    def __init__(self) -> None:
        self.handle = _got("cuStreamCreate", 0)

    def synchronize(self) -> None:
        """Wait for the work on it."""
        _call("cuStreamSynchronize", self.handle)


class Event:
    """A point on the default stream that has a time."""

    def __init__(self) -> None:
        self._handle = _got("cuEventCreate", 0)

    def __del__(self) -> None:
        _cuda.cuEventDestroy_v2(ctypes.c_uint64(self._handle))

    def record(self) -> None:
        """Be the point that the default stream has come to."""
        _call("cuEventRecord", self._handle, 0)

    def synchronize(self) -> None:
        """Wait for it."""
        _call("cuEventSynchronize", self._handle)

    def time_till(self, other: Event) -> float:
        """Milliseconds to a later one."""
        found = ctypes.c_float()
        _call("cuEventElapsedTime", ctypes.byref(found), self._handle, other._handle)
        return found.value


class Module:
    """Loaded code."""

    def __init__(self, image: bytes) -> None:
        self._handle = _got("cuModuleLoadData", image)

    def get_function(self, entry: str) -> Function:
        """One of its kernels."""
        return Function(_got("cuModuleGetFunction", self._handle, entry.encode()))


def module_from_buffer(image: bytes) -> Module:
    """Load a cubin, or PTX that ends with a zero."""
    return Module(image)


class Function:
    """A kernel; once it is prepared for arguments of formats of the module struct, it is launched with such."""

    def __init__(self, handle: int) -> None:
        self._handle, self._arguments = handle, struct.Struct("")

    def set_cache_config(self, cache: int) -> None:
        """Favour one of `func_cache`."""
        _call("cuFuncSetCacheConfig", self._handle, cache)

    def set_attribute(self, attribute: int, value: int) -> None:
        """Set one of `function_attribute`."""
        _call("cuFuncSetAttribute", self._handle, attribute, value)

    def prepare(self, formats: Sequence[str]) -> Function:
        """Be launched with arguments of 64 bits each."""
        self._arguments = struct.Struct("".join(formats))
        return self

    def prepared_call(self, grid: Sequence[int], block: Sequence[int], *arguments: int, shared_size: int = 0) -> None:
        """Queue it on the default stream."""
        self._launch(grid, block, 0, arguments, shared_size)

    def prepared_async_call(
        self, grid: Sequence[int], block: Sequence[int], stream: Stream, *arguments: int, shared_size: int = 0
    ) -> None:
        """Queue it on a stream."""
        self._launch(grid, block, stream.handle, arguments, shared_size)

    def _launch(
        self, grid: Sequence[int], block: Sequence[int], stream: int, arguments: Sequence[int], shared_size: int
    ) -> None:
        count = len(arguments)
        packed = ctypes.create_string_buffer(self._arguments.pack(*arguments))
        first = ctypes.addressof(packed)
        places = (_Handle * count)(*range(first, first + 8 * count, 8))
        _call("cuLaunchKernel", self._handle, *grid, 1, *block, shared_size, stream, places, 0)
