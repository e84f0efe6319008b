"""Host memory: what is free, and aligned arrays that refuse to be larger than that."""

from __future__ import annotations

import math
import os
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.errors import OutOfMemory

# A cache line; unaligned vectors cost 15 to 35% (measured on AVX-512).
ALIGNMENT = 64
# Below this an allocation is not worth asking the system first.
_CHECKED_BYTES = 1 << 26


def free_bytes() -> int:
    """Bytes of memory that this process may still take: the system's, or its control group's if that is less."""
    return min(_system_free(), _control_group_free())


def total_bytes() -> int:
    """Bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@lru_cache(maxsize=1)
def last_level_cache_bytes() -> int:
    """Bytes of the largest cache of the first core; 32 MiB where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1))
    return max(sizes, default=32 << 20)


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike, purpose: str) -> NDArray[np.floating]:
    """An uninitialised C-contiguous array on a cache-line boundary.

    Raises
    ------
    OutOfMemory
        If it would not fit; says for what, how many bytes are needed and how many are free.
    """
    needed = math.prod(shape) * np.dtype(dtype).itemsize
    if needed >= _CHECKED_BYTES and needed > (free := free_bytes()):
        raise OutOfMemory(purpose, needed, free)
    try:
        room = np.empty(needed + ALIGNMENT, dtype=np.uint8)
    except MemoryError as error:
        raise OutOfMemory(purpose, needed, free_bytes()) from error
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + needed].view(dtype).reshape(shape)


def _system_free() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return total_bytes()


def _control_group_free() -> int:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return total_bytes()
    # File pages that nobody uses count as used, and are given back when somebody asks.
    idle = int(statistics.get("inactive_file", 0))
    return total_bytes() if limit == "max" else max(0, int(limit) - used + idle)
