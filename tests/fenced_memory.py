"""Arrays between fences, where whoever reads or writes beside them is found out, and arrays larger than memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

_FILL = 0xA5
_NO_ACCESS, _READ = 0, 1
# Linux's number: Python 3.11 does not have the name.
_NO_RESERVE = 0x4000
# What a GPU's vector loads rely on; and a sector of its memory, on which the zeros depend that strips write beside
# results.
VECTOR_BYTES, SECTOR_BYTES = 16, 32


class FencedMemory:
    """An array between two pages that nobody may touch, at the beginning of the room between them or at its end.

    One that begins at its page is aligned as the driver aligns; one that ends there, to `alignment` bytes. The bytes
    that alignment leaves over hold a pattern, by which `damage` sees what was written there; what is only read there,
    less than `alignment` bytes past the end, nobody sees.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: DTypeLike, *, at_end: bool = False, alignment: int = VECTOR_BYTES
    ) -> None:
        page = mmap.PAGESIZE
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        room = max(-(-size // page), 1) * page
        self._memory = mmap.mmap(-1, room + 2 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._room = slice(page, page + room)
        self._start = page + (room - -(-size // alignment) * alignment if at_end else 0)
        self._stop = self._start + size
        self._bytes[page : self._start] = _FILL
        self._bytes[self._stop : page + room] = _FILL
        self.array: Array = self._bytes[self._start : self._stop].view(dtype).reshape(shape)
        self._protect(slice(0, page), _NO_ACCESS)
        self._protect(slice(page + room, room + 2 * page), _NO_ACCESS)

    def forbid_writing(self) -> None:
        """Let whoever writes to the array be found out too."""
        self._protect(self._room, _READ)

    def damage(self) -> str:
        """Where, "before" the array or "after" it, a byte between it and its fences changed; nothing if none did."""
        before, after = self._bytes[self._room.start : self._start], self._bytes[self._stop : self._room.stop]
        return "before" if (before != _FILL).any() else "after" if (after != _FILL).any() else ""

    def _protect(self, pages: slice, protection: int) -> None:
        start, length = self._bytes.ctypes.data + pages.start, pages.stop - pages.start
        if _libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(protection)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sparse_zeros(count: int, dtype: DTypeLike) -> Array:
    """An array of zeros that may be larger than the memory: only the pages that are written take room."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return np.frombuffer(mmap.mmap(-1, count * np.dtype(dtype).itemsize, flags), dtype)


_libc = ctypes.CDLL(None, use_errno=True)
