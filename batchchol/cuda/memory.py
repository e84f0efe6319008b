"""Device memory: allocations that any thread may drop, and PyCUDA arrays over them and over other libraries' arrays.

PyCUDA frees memory in the thread that made its context alone, and only warns of the rest. And freeing waits for the
GPU: small pieces, such as a call's info, are therefore kept and used again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.cuda.device import Device, device, stream_address
from batchchol.errors import OutOfMemory

# Kept for the next allocation of the same size: pieces up to the first, together up to the second.
_KEPT_PIECE, _KEPT_BYTES = 16 << 20, 64 << 20
_GRANULE = 512
_MINUS_ONE = 0xFFFFFFFF
_INFO = np.dtype(np.int32)
# Streams of the CUDA Array Interface: the default one, with which ours agrees already.
_LEGACY_STREAM = 1


def free_bytes() -> int:
    """Bytes of the GPU's memory that are free."""
    gpu = device()
    with gpu.current("asking for the free memory"):
        return int(gpu.pycuda.mem_get_info()[0]) + _pool().kept


def empty(shape: tuple[int, ...], dtype: DTypeLike, purpose: str) -> Any:
    """An uninitialised C-contiguous GPUArray.

    Raises
    ------
    OutOfMemory
        If it would not fit; says for what, how many bytes are needed and how many are free.
    """
    blank = _blank(shape, np.dtype(dtype))
    array = object.__new__(type(blank))
    array.__dict__.update(blank.__dict__, gpudata=_pool().allocate(blank.nbytes, purpose) if blank.nbytes else None)
    return array


@lru_cache(maxsize=256)
def _blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A GPUArray without memory, to copy: working out its geometry anew costs as much as a launch."""
    from pycuda.gpuarray import GPUArray

    with device().current():
        return GPUArray(shape, dtype, gpudata=0)


def info_array(batch: int, *, poisoned: bool = True) -> Any:
    """A GPUArray of int32; if `poisoned`, -1 until a kernel has written it."""
    array = empty((batch,), _INFO, "the info")
    if batch and poisoned:
        device().fill_words(int(array.gpudata), _MINUS_ONE, batch)
    return array


def share(stream: Any, *arrays: Any) -> None:
    """Make arrays ready for use on another stream than the default one, on which they were allocated and written.

    Work on it waits for what the default stream has been given, and pieces of memory that nobody has any more are
    freed, which waits for the GPU, rather than used again. A stream that is being captured waits for nothing: the
    graph does not know what it would be.
    """
    gpu, queue = device(), stream_address(stream)
    if not gpu.is_current():
        with gpu.current():
            _await_default(gpu, queue)
    else:
        _await_default(gpu, queue)
    for array in arrays:
        if (owned := _memory_of(array)) is not None:
            owned.reusable = False


def _await_default(gpu: Device, stream: int) -> None:
    if not gpu.driver.is_capturing(stream):
        gpu.driver.wait_for(0, stream)


def _memory_of(array: Any) -> Memory | None:
    """The memory that an array lies in, if it is this library's."""
    # Slices and other views have plain addresses in the memory of their base.
    while array is not None and not isinstance(getattr(array, "gpudata", None), Memory):
        array = getattr(array, "base", None)
    return None if array is None else array.gpudata


def to_device(a: NDArray[Any], purpose: str) -> Any:
    """A copy of a host array on the GPU."""
    array = empty(a.shape, a.dtype, purpose)
    if a.size:
        copy_to_device(a, int(array.gpudata))
    return array


def copy_to_device(a: NDArray[Any], address: int) -> None:
    """Copy a host array, element after element in C order, to the GPU."""
    gpu = device()
    with gpu.current("copying to the GPU"):
        gpu.pycuda.memcpy_htod(address, np.ascontiguousarray(a))


def to_host(array: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """A C-contiguous GPUArray as a NumPy array, once all work on the GPU is done."""
    gpu = device()
    host = np.empty(array.shape, array.dtype) if out is None else out
    gpu.synchronize()
    if array.size:
        with gpu.current("copying from the GPU"):
            gpu.pycuda.memcpy_dtoh(host, int(array.gpudata))
    return host


def copy_on_device(source: Any, destination: Any) -> None:
    """Queue the copy of an array to another of the same size."""
    gpu = device()
    if source.nbytes:
        with gpu.current("copying on the GPU"):
            gpu.pycuda.memcpy_dtod_async(int(destination.gpudata), int(source.gpudata), source.nbytes)


def is_device_array(a: Any) -> bool:
    """Whether an object is an array on a GPU."""
    return hasattr(a, "__cuda_array_interface__")


def as_gpuarray(a: Any, argument: str = "a") -> Any:
    """Another library's array on this GPU as a GPUArray of the same memory, which it keeps alive.

    Work on the default stream waits for what is still to be done to it on the stream that it comes from, if it names
    one.

    Raises
    ------
    TypeError, ValueError
        If it is not on this GPU, has a mask, or is not C-contiguous.
    """
    from pycuda.gpuarray import GPUArray

    if not is_device_array(a):
        raise TypeError(f"{argument}: got {type(a).__name__}, expected an array on a GPU")
    described = a.__cuda_array_interface__
    if described.get("mask") is not None:
        raise TypeError(f"{argument}: got a device array with a mask, expected one without")
    shape, dtype, strides = tuple(described["shape"]), np.dtype(described["typestr"]), described.get("strides")
    if strides is not None and not _contiguous(shape, strides, dtype.itemsize):
        raise ValueError(
            f"{argument}: got a device array of shape {shape} and strides {tuple(strides)}, expected a C-contiguous "
            "one: make it so where it comes from (torch's .contiguous(), cupy.ascontiguousarray)"
        )
    gpu = device()
    with gpu.current("taking over a device array"):
        if described.get("stream") not in (None, _LEGACY_STREAM):
            gpu.driver.wait_for(int(described["stream"]), 0)
        if isinstance(a, GPUArray):
            return a
        address = int(described["data"][0])
        if address and (other := gpu.driver.device_of(address)):
            raise ValueError(
                f"{argument}: got an array of GPU {other}, expected one of GPU 0, the only one used: copy it there, "
                "or start the process with CUDA_VISIBLE_DEVICES"
            )
        return GPUArray(shape, dtype, base=a, gpudata=address)


def _contiguous(shape: tuple[int, ...], strides: Sequence[int], itemsize: int) -> bool:
    expected = itemsize
    if 0 in shape:
        return True
    for length, step in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and step != expected:
            return False
        expected *= length
    return True


@dataclass(frozen=True, slots=True)
class _Piece:
    """Memory that PyCUDA allocated, and how many bytes."""

    pool: _Pool
    handle: Any
    address: int
    size: int


class _Pool:
    """Where memory comes from and goes back to."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._pieces: dict[int, list[_Piece]] = {}
        # Reentrant: the garbage collector may drop an array while another one is being made.
        self._lock = threading.RLock()
        self.kept = 0

    def allocate(self, nbytes: int, purpose: str) -> Memory:
        size = -(-nbytes // _GRANULE) * _GRANULE
        with self._lock:
            if pieces := self._pieces.get(size):
                self.kept -= size
                return Memory.of(pieces.pop())
        # A capture that another library has under way is none of this memory's business.
        with self._gpu.current("allocating"), self._gpu.driver.relaxed():
            try:
                handle = self._gpu.pycuda.mem_alloc(size)
            except self._gpu.pycuda.MemoryError:
                self.release()
                handle = self._allocate_at_last(size, purpose)
        return Memory.of(_Piece(self, handle, int(handle), size))

    def give_back(self, piece: _Piece, reusable: bool) -> None:
        """Keep a piece for the next of its size, or free it."""
        size = piece.size
        with self._lock:
            if reusable and size <= _KEPT_PIECE and self.kept + size <= _KEPT_BYTES:
                self._pieces.setdefault(size, []).append(piece)
                self.kept += size
                return
        with self._gpu.current("freeing"), self._gpu.driver.relaxed():
            piece.handle.free()

    def release(self) -> None:
        """Free what is kept."""
        with self._lock:
            pieces = [piece for kept in self._pieces.values() for piece in kept]
            self._pieces.clear()
            self.kept = 0
        with self._gpu.current("freeing"), self._gpu.driver.relaxed():
            for piece in pieces:
                piece.handle.free()

    def _allocate_at_last(self, size: int, purpose: str) -> Any:
        cuda = self._gpu.pycuda
        try:
            return cuda.mem_alloc(size)
        except cuda.MemoryError as error:
            raise OutOfMemory(f"{purpose}, on the GPU,", size, int(cuda.mem_get_info()[0])) from error


@cache
def _pool() -> _Pool:
    return _Pool(device())


class Memory(int):
    """The address of a piece of device memory, which goes back to where it came from when nobody has it any more."""

    _piece: _Piece
    reusable = True

    @classmethod
    def of(cls, piece: _Piece) -> Memory:
        """The address of a piece."""
        made = cls(piece.address)
        made._piece = piece
        return made

    def __del__(self) -> None:
        try:
            piece = self._piece
            piece.pool.give_back(piece, self.reusable)
        except Exception:
            # The interpreter or the context is going down, and the memory with it.
            return
