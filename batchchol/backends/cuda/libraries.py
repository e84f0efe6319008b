"""The libraries whose arrays on a GPU the public calls take, and return: PyTorch, CuPy, Numba and PyCUDA.

None of them is imported here: an array of theirs is there only once they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

Make = Callable[[], Any]


class Seen(NamedTuple):
    """What a call asks of a C-contiguous array first."""

    address: int
    shape: tuple[int, ...]
    dtype: Any


class Library(Protocol):
    """How arrays of a library are read and made, all on the first GPU; dtypes are the library's own."""

    def __hash__(self) -> int: ...

    def holds(self, a: Any) -> bool:
        """Whether what is of a type of the library's is an array on a GPU."""

    def seen(self, a: Any) -> Seen | None:
        """Where an array is and what it is, or None if it is not C-contiguous, or on another GPU."""

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Make:
        """What makes uninitialised arrays of a shape, with little left to do for each."""

    def address(self, a: Any) -> int:
        """Where a C-contiguous array begins."""

    def stream(self) -> int:
        """The library's current stream, 0 for the default one."""

    def over(self, array: Any) -> Any:
        """The library's view of another one's array, which it keeps alive."""


class Torch:
    """PyTorch's tensors."""

    def __init__(self) -> None:
        self._torch = sys.modules["torch"]
        self._current_stream = self._torch._C._cuda_getCurrentRawStream

    def holds(self, a: Any) -> bool:
        return bool(a.is_cuda)

    def seen(self, a: Any) -> Seen | None:
        here = a.is_contiguous() and not a.get_device() and not (a.requires_grad and self._torch.is_grad_enabled())
        return Seen(a.data_ptr(), a.shape, a.dtype) if here else None

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Make:
        # Describing a new tensor takes three times as long as naming one like it.
        one = self._torch.empty((), dtype=getattr(self._torch, dtype.name), device="cuda:0")
        return partial(self._torch.empty_like, one.expand(shape), memory_format=self._torch.contiguous_format)

    def address(self, a: Any) -> int:
        return int(a.data_ptr())

    def stream(self) -> int:
        return int(self._current_stream(0))

    def over(self, array: Any) -> Any:
        return self._torch.as_tensor(array, device="cuda:0")


class Cupy:
    """CuPy's arrays."""

    def __init__(self) -> None:
        self._cupy = sys.modules["cupy"]
        self._current_stream = self._cupy.cuda.get_current_stream

    def holds(self, a: Any) -> bool:
        return isinstance(a, self._cupy.ndarray)

    def seen(self, a: Any) -> Seen | None:
        data = a.data
        here = a.flags.c_contiguous and not data.device_id
        return Seen(data.ptr, a.shape, a.dtype) if here else None

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Make:
        return partial(self._cupy.ndarray, shape, dtype)

    def address(self, a: Any) -> int:
        return int(a.data.ptr)

    def stream(self) -> int:
        return int(self._current_stream().ptr)

    def over(self, array: Any) -> Any:
        return self._cupy.asarray(array)


class Numba:
    """Numba's device arrays, whose work is on the default stream."""

    def __init__(self) -> None:
        self._cuda = sys.modules["numba.cuda"]

    def holds(self, a: Any) -> bool:
        return hasattr(a, "device_ctypes_pointer")

    def seen(self, a: Any) -> Seen | None:
        return Seen(self.address(a), a.shape, a.dtype) if a.is_c_contiguous() else None

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Make:
        return partial(self._cuda.device_array, shape, dtype)

    def address(self, a: Any) -> int:
        return int(a.device_ctypes_pointer.value or 0)

    def stream(self) -> int:
        return 0

    def over(self, array: Any) -> Any:
        return self._cuda.as_cuda_array(array)


class Pycuda:
    """PyCUDA's arrays: in this library's memory, in the order of the default stream."""

    def __init__(self) -> None:
        from batchchol.backends.cuda import memory, pool

        self._empty, self._memory = memory.empty, pool.Memory

    def holds(self, a: Any) -> bool:
        return hasattr(a, "gpudata")

    def seen(self, a: Any) -> Seen | None:
        # Of other memory the driver is asked whose it is.
        here = isinstance(a.gpudata, self._memory) and a.flags.c_contiguous
        return Seen(int(a.gpudata), a.shape, a.dtype) if here else None

    def maker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Make:
        return partial(self._empty, shape, dtype, f"an array of shape {shape}")

    def address(self, a: Any) -> int:
        return int(a.gpudata or 0)

    def stream(self) -> int:
        return 0

    def over(self, array: Any) -> Any:
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
