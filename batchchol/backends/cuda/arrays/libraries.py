"""The libraries whose arrays on a GPU the public calls take, and return: PyTorch, CuPy, Numba and PyCUDA.

None of them is imported here: an array of theirs is there only once they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from itertools import accumulate
from math import prod
from operator import attrgetter, mul
from typing import Any, NamedTuple, Protocol

import numpy as np

Make = Callable[[], Any]
# Small arrays of CuPy's: how many lie in one allocation, its most bytes, how they are aligned, for how many streams.
_PARTS, _PARTS_BYTES, _ALIGNMENT, _STREAMS = 32, 1 << 19, 512, 8
_PER_THREAD = 2
# What a call asks of an array first: its address, its shape, its dtype and its GPU's number.
Seen = tuple[int, Any, Any, int]


class Apart(NamedTuple):
    """The shape of an array that is not C-contiguous, and the elements between neighbours along each axis."""

    shape: Any
    steps: tuple[int, ...]


class Library(Protocol):
    """How arrays of a library are read and made; dtypes are the library's own, GPUs are known by their numbers.

    Attributes
    ----------
    lack_of_memory : type or ()
        What it raises where a GPU has no memory left; () where that is as of all calls.
    """

    @property
    def lack_of_memory(self) -> type[Exception] | tuple[()]: ...

    def __hash__(self) -> int: ...

    def holds(self, a: Any) -> bool:
        """Whether an object of the library's type is an array on a GPU."""

    def gpu_of(self, a: Any) -> int:
        """The GPU that an array is on."""

    def there(self, gpu: int) -> AbstractContextManager[Any] | None:
        """What has the library make arrays on a GPU, unless it does so already."""

    def seen(self, a: Any) -> Seen | None:
        """Where an array is and what it is, or None if it is not C-contiguous."""

    def apart(self, a: Any) -> Seen | None:
        """The same of one that is not, its shape an `Apart`; None if it cannot be read where it is."""

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any], gpu: int) -> Make:
        """What makes uninitialised arrays on the GPU that it is `there`: little is left to do for each."""

    def address(self, a: Any, /) -> int:
        """Where a C-contiguous array begins."""

    def stream(self, gpu: int, /) -> int:
        """The library's current stream on the GPU that it is `there`, 0 for the default one."""

    def over(self, array: Any, gpu: int) -> Any:
        """The library's view of another one's array on a GPU, which it keeps alive."""


class Torch:
    """PyTorch's tensors."""

    def __init__(self) -> None:
        self._torch = sys.modules["torch"]
        self.lack_of_memory: type[Exception] = self._torch.cuda.OutOfMemoryError
        # No functions of Python around these: a call of one takes as long.
        self.address: Callable[[Any], int] = self._torch.Tensor.data_ptr
        self.gpu_of: Callable[[Any], int] = self._torch.Tensor.get_device
        self.stream: Callable[[int], int] = self._torch._C._cuda_getCurrentRawStream
        self._current: Callable[[], int] = self._torch._C._cuda_getDevice

    def holds(self, a: Any) -> bool:
        return bool(a.is_cuda)

    def there(self, gpu: int) -> AbstractContextManager[Any] | None:
        if self._current() == gpu:
            return None
        context: AbstractContextManager[Any] = self._torch.cuda.device(gpu)
        return context

    def seen(self, a: Any) -> Seen | None:
        if not a.is_contiguous() or (a.requires_grad and self._torch.is_grad_enabled()):
            return None
        return a.data_ptr(), a.shape, a.dtype, a.get_device()

    def apart(self, a: Any) -> Seen | None:
        # The memory of a lazily negated tensor does not hold the negated values.
        if a.is_contiguous() or a.is_neg() or (a.requires_grad and self._torch.is_grad_enabled()):
            return None
        return a.data_ptr(), Apart(a.shape, a.stride()), a.dtype, a.get_device()

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any], gpu: int) -> Make:
        kind = getattr(self._torch, dtype.name)
        # What torch's compiled code makes tensors by, on the current GPU, in two thirds of the time.
        quick: Any = self._torch
        for name in ("_C", "_dynamo", "guards", "_empty_strided_cuda"):
            quick = getattr(quick, name, None)
        if quick is not None:
            strides = tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()
            return partial(quick, shape, strides, kind)
        # Describing a new tensor takes three times as long as naming one like it.
        one = self._torch.empty((), dtype=kind, device=f"cuda:{gpu}")
        return partial(self._torch.empty_like, one.expand(shape), memory_format=self._torch.contiguous_format)

    def over(self, array: Any, gpu: int) -> Any:
        return self._torch.as_tensor(array, device=f"cuda:{gpu}")


class Cupy:
    """CuPy's arrays."""

    def __init__(self) -> None:
        self._cupy = sys.modules["cupy"]
        self._cuda = self._cupy.cuda
        self.lack_of_memory: type[Exception] = self._cuda.memory.OutOfMemoryError
        # No functions of Python around these.
        self.address: Callable[[Any], int] = attrgetter("data.ptr")
        self.gpu_of: Callable[[Any], int] = attrgetter("data.device_id")
        self._said: Callable[[Any], Seen] = attrgetter("data.ptr", "shape", "dtype", "data.device_id")
        # Asking for the flags makes an object of them.
        contiguous = "_c_contiguous" if hasattr(self._cupy.ndarray, "_c_contiguous") else "flags.c_contiguous"
        self._is_contiguous: Callable[[Any], bool] = attrgetter(contiguous)
        self._current: Callable[[], int] = self._cuda.runtime.getDevice
        self._current_stream: Callable[[], Any] = self._cuda.get_current_stream

    def holds(self, a: Any) -> bool:
        return isinstance(a, self._cupy.ndarray)

    def there(self, gpu: int) -> AbstractContextManager[Any] | None:
        if self._current() == gpu:
            return None
        context: AbstractContextManager[Any] = self._cuda.Device(gpu)
        return context

    def seen(self, a: Any) -> Seen | None:
        return self._said(a) if self._is_contiguous(a) else None

    def apart(self, a: Any) -> Seen | None:
        address, shape, dtype, gpu = self._said(a)
        steps, rest = zip(*[divmod(step, dtype.itemsize) for step in a.strides], strict=True)
        return None if any(rest) else (address, Apart(shape, steps), dtype, gpu)

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any], gpu: int) -> Make:
        nbytes = prod(shape) * dtype.itemsize
        if 0 < nbytes <= _PARTS_BYTES // _PARTS:
            return _Parts(self._cupy, shape, dtype, nbytes)
        return partial(self._cupy.ndarray, shape, dtype)

    def stream(self, gpu: int, /) -> int:
        address: int = self._current_stream().ptr
        return address

    def over(self, array: Any, gpu: int) -> Any:
        return self._cupy.asarray(array)


class _Parts:
    """Makes small arrays of CuPy's on parts of one allocation: that takes longer than making an array.

    The allocation is of the current stream's memory, as that of an array of its own, and is there until no array lies
    in it. No part is given out twice.
    """

    def __init__(self, cupy: Any, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> None:
        self._make = partial(cupy.ndarray, shape, dtype)
        self._allocate, self._current_stream = cupy.cuda.alloc, cupy.cuda.get_current_stream
        self._size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        # Parts still to be given out, by stream.
        self._left: dict[int, list[Any]] = {}

    def __call__(self) -> Any:
        stream = self._current_stream().ptr
        try:
            place = self._left[stream].pop()
        except (KeyError, IndexError):
            place = self._first_of_more(stream)
        return self._make(place)

    def _first_of_more(self, stream: int) -> Any:
        if stream == _PER_THREAD:
            # One number for a stream of each thread.
            return self._allocate(self._size)
        first = self._allocate(_PARTS * self._size)
        if len(self._left) >= _STREAMS:
            self._left.clear()
        self._left[stream] = [first + part * self._size for part in range(1, _PARTS)]
        return first


class Numba:
    """Numba's device arrays, whose work is on the default stream."""

    lack_of_memory = ()

    def __init__(self) -> None:
        self._cuda = sys.modules["numba.cuda"]

    def holds(self, a: Any) -> bool:
        return hasattr(a, "device_ctypes_pointer")

    def gpu_of(self, a: Any) -> int:
        from batchchol.backends.cuda.device import number_at

        return number_at(self.address(a))

    def there(self, gpu: int) -> AbstractContextManager[Any] | None:
        # It makes none current that is so already.
        context: AbstractContextManager[Any] = self._cuda.gpus[gpu]
        return context

    def seen(self, a: Any) -> Seen | None:
        return (self.address(a), a.shape, a.dtype, self.gpu_of(a)) if a.is_c_contiguous() else None

    def apart(self, a: Any) -> None:
        return None

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any], gpu: int) -> Make:
        return partial(self._cuda.device_array, shape, dtype)

    def address(self, a: Any, /) -> int:
        return int(a.device_ctypes_pointer.value or 0)

    def stream(self, gpu: int, /) -> int:
        return 0

    def over(self, array: Any, gpu: int) -> Any:
        return self._cuda.as_cuda_array(array)


class Pycuda:
    """PyCUDA's arrays: in this library's memory, in the order of the default stream."""

    lack_of_memory = ()

    def __init__(self) -> None:
        from batchchol.backends.cuda import memory, pool

        self._memory, self._kind = memory, pool.Memory

    def holds(self, a: Any) -> bool:
        return hasattr(a, "gpudata")

    def gpu_of(self, a: Any) -> int:
        return a.gpudata.gpu if isinstance(a.gpudata, self._kind) else self._memory.gpu_of(a)

    def there(self, gpu: int) -> None:
        return None

    def seen(self, a: Any) -> Seen | None:
        # Of other memory the driver is asked whose it is.
        here = isinstance(a.gpudata, self._kind) and a.flags.c_contiguous
        return (int(a.gpudata), a.shape, a.dtype, a.gpudata.gpu) if here else None

    def apart(self, a: Any) -> None:
        return None

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any], gpu: int) -> Make:
        made: Make = self._memory.maker(shape, dtype, f"an array of shape {shape}")
        return made

    def address(self, a: Any, /) -> int:
        return int(a.gpudata or 0)

    def stream(self, gpu: int, /) -> int:
        return 0

    def over(self, array: Any, gpu: int) -> Any:
        return array


# By the packages that the types of arrays are from.
_LIBRARIES: dict[str, Callable[[], Library]] = {
    "torch": Torch,
    "cupy": Cupy,
    "numba": Numba,
    "numba_cuda": Numba,
    "pycuda": Pycuda,
}


def library_of(a: Any) -> Library | None:
    """The library of an array on a GPU; None of other arrays."""
    kind: Any = type(a)
    found = _by_type(kind)
    return found if found is None or found.holds(a) else None


@cache
def _by_type(kind: type) -> Library | None:
    packages = {each.__module__.partition(".")[0] for each in kind.__mro__}
    return next((_library(name) for name in _LIBRARIES if name in packages), None)


@cache
def _library(name: str) -> Library:
    return _LIBRARIES[name]()
