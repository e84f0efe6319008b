"""Arrays in device memory: PyCUDA's, over this library's memory and over other libraries' arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.backends.cuda import support
from batchchol.backends.cuda.device import Device, device, number_at, stream_address
from batchchol.backends.cuda.gpus import first
from batchchol.backends.cuda.pool import Memory, Pool
from batchchol.batches.batch import check_dtype

_MINUS_ONE = 0xFFFFFFFF
_INFO = np.dtype(np.int32)
# Streams of the CUDA Array Interface: the default one, with which ours agrees already.
_LEGACY_STREAM = 1


class View(NamedTuple):
    """The facts that a kernel needs of a C-contiguous array on this GPU. They keep nothing alive."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def free_bytes() -> int:
    """Bytes of the GPU's memory that are free, or kept for reuse."""
    gpu = device()
    with gpu.current("asking for the free memory"):
        return int(gpu.pycuda.mem_get_info()[0]) + kept_bytes()


def kept_bytes() -> int:
    """Bytes of unused memory that are kept for reuse; at most an eighth of the GPU's."""
    return _pool().kept


def release() -> int:
    """Give the memory that is kept back to the GPU, for other libraries and processes; how many bytes it was.

    It waits for all work on the GPU. Where this library lacks memory it does so by itself.
    """
    return _pool().release()


def room(nbytes: int, purpose: str) -> Memory:
    """The address of `nbytes` bytes, uninitialised; they are free again once nothing refers to them.

    Raises
    ------
    OutOfMemory
        If they would not fit; says for what, how many bytes are needed and how many are free.
    """
    return _pool().allocate(nbytes, purpose)


def empty(shape: tuple[int, ...], dtype: DTypeLike, purpose: str) -> Any:
    """An uninitialised C-contiguous GPUArray.

    Raises
    ------
    OutOfMemory
        If it would not fit; says for what, how many bytes are needed and how many are free.
    """
    return maker(shape, np.dtype(dtype), purpose)()


def maker(shape: tuple[int, ...], dtype: np.dtype[Any], purpose: str) -> Callable[[], Any]:
    """What makes `empty` arrays on the GPU that this thread's calls use now."""
    blank, allocate = _blank(shape, dtype), _pool().allocate
    kind, described, nbytes = type(blank), blank.__dict__, blank.nbytes

    def make() -> Any:
        array = object.__new__(kind)
        array.__dict__.update(described, gpudata=allocate(nbytes, purpose) if nbytes else None)
        return array

    return make


@lru_cache(maxsize=256)
def _blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A GPUArray without memory, to copy: working out its geometry anew costs as much as a launch."""
    with device().current():
        return device().array_type(shape, dtype, gpudata=0)


def info_array(batch: int, *, poisoned: bool = True) -> Any:
    """A GPUArray of int32; if `poisoned`, -1 until a kernel has written it."""
    array = empty((batch,), _INFO, "the info")
    if batch and poisoned:
        poison(array)
    return array


def poison(array: Any) -> None:
    """Queue the setting of all bits of a GPUArray of floats or int32: NaN, or -1."""
    device().fill_words(int(array.gpudata), _MINUS_ONE, array.nbytes // 4)


def share(stream: Any, *arrays: Any) -> None:
    """Make arrays ready for use on another stream than the default one, on which they were allocated and written.

    Work on it waits for what the default stream has been given, and its memory, once unused, is freed, which waits
    for the GPU, rather than reused. A stream that is being captured waits for nothing: the
    graph does not know what it would be.
    """
    gpu, queue = device(), stream_address(stream)
    with gpu.at_hand():
        if not gpu.driver.is_capturing(queue):
            gpu.driver.wait_for(0, queue)
    for array in arrays:
        if (owned := _memory_of(array)) is not None:
            owned.reusable = False


def wait_for(stream: Any) -> None:
    """Have work on the default stream wait for what another one has been given."""
    gpu = device()
    with gpu.at_hand():
        gpu.driver.wait_for(stream_address(stream), 0)


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


def fetched(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A copy on the host of what lies at an address, once all work on the GPU is done: for less than `to_host`."""
    gpu, host = device(), np.empty(shape, dtype)
    with gpu.at_hand("copying from the GPU"):
        gpu.driver.fetch(address, host.ctypes.data, host.nbytes)
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


def gpu_of(a: Any, address: int | None = None) -> int:
    """The number of the GPU that an array, which may be at a known address, is on."""
    if (owned := _memory_of(a)) is not None:
        return owned.gpu
    place: int = int(a.__cuda_array_interface__["data"][0]) if address is None else address
    return number_at(place) if place else first()


def is_writeable(a: Any) -> bool:
    """Whether an array on a GPU may be written to."""
    return not a.__cuda_array_interface__["data"][1]


def over(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """An array in memory at an address, which it does not keep."""
    return device().array_type(shape, dtype, gpudata=address)


def as_gpuarray(a: Any, argument: str = "a") -> Any:
    """Another library's array on this GPU as a GPUArray of the same memory, which it keeps alive.

    Of its errors and of whom the default stream waits for see `view`.
    """
    kind, seen = device().array_type, view(a, argument)
    return a if isinstance(a, kind) else kind(seen.shape, seen.dtype, base=a, gpudata=seen.address)


def view(a: Any, argument: str = "a") -> View:
    """Where another library's array lies on this GPU.

    Work on the default stream waits for what is still to be done to it on the stream that it comes from, if it names
    one.

    Raises
    ------
    TypeError, ValueError
        If it is not on this GPU, has a mask, or is not C-contiguous.
    """
    # What this library made is known, and asking takes as long as a launch.
    address = getattr(a, "gpudata", None)
    if isinstance(address, Memory) and address.gpu == first() and a.flags.c_contiguous:
        return View(int(address), a.shape, a.dtype)
    found, strides = _described(a, argument)
    if strides is not None:
        raise ValueError(
            f"{argument}: got a device array of shape {found.shape} and strides {strides}, expected a C-contiguous "
            "one: make it so where it comes from (torch's .contiguous(), cupy.ascontiguousarray)"
        )
    return found


def contiguous(a: Any, argument: str = "a") -> Any:
    """An array as it is or, if it is not C-contiguous, a copy, queued on the default stream.

    Raises
    ------
    TypeError, ValueError
        If it is not on this GPU, has a mask or too many axes apart, or is neither C-contiguous nor of float32 or
        float64.
    """
    found, strides = _described(a, argument)
    if strides is None:
        return a
    size = check_dtype(argument, found.dtype).itemsize
    copy = empty(found.shape, found.dtype, f"a contiguous copy of {argument}")
    steps = [step // size for step in strides]
    support.gather(device(), found.address, int(copy.gpudata), found.shape, steps, found.dtype.name)
    return copy


def _described(a: Any, argument: str) -> tuple[View, tuple[int, ...] | None]:
    """Where an array lies on this GPU, and its strides in bytes unless it is C-contiguous; see `view`."""
    if not is_device_array(a):
        raise TypeError(f"{argument}: got {type(a).__name__}, expected an array on a GPU")
    described = a.__cuda_array_interface__
    if described.get("mask") is not None:
        raise TypeError(f"{argument}: got a device array with a mask, expected one without")
    shape, dtype, strides = tuple(described["shape"]), np.dtype(described["typestr"]), described.get("strides")
    gpu, address = device(), int(described["data"][0])
    with gpu.at_hand("taking over a device array"):
        if (stream := described.get("stream")) not in (None, _LEGACY_STREAM):
            gpu.driver.wait_for(int(stream), 0)
        if address and (other := gpu_of(a, address)) != gpu.number:
            raise ValueError(
                f"{argument}: got an array of GPU {other}, expected one of GPU {gpu.number}, where the call's first "
                f"array is, or what it is about: copy it there, or call within batchchol.gpus({other})"
            )
    packed = strides is None or _contiguous(shape, strides, dtype.itemsize)
    return View(address, shape, dtype), None if packed else tuple(strides)


def _contiguous(shape: tuple[int, ...], strides: Sequence[int], itemsize: int) -> bool:
    steps = accumulate(reversed(shape), operator.mul, initial=itemsize)
    dimensions = zip(reversed(shape), reversed(strides), steps, strict=False)
    return 0 in shape or all(length <= 1 or stride == step for length, stride, step in dimensions)


def _pool() -> Pool:
    return _pool_of(device())


@cache
def _pool_of(gpu: Device) -> Pool:
    return Pool(gpu)
