"""Host memory: what is free, and aligned arrays that refuse to be larger than that."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.errors import OutOfMemory
from batchchol.files import system_values

# A cache line; unaligned vectors cost 15 to 35% (measured on AVX-512).
ALIGNMENT = 64
# A large page, for arrays that NumPy asks the system to have in such pages: one that begins there has no small ones.
_PAGE, _PAGED_BYTES = 1 << 21, 1 << 22
# Below this an allocation is not worth asking the system first.
_CHECKED_BYTES = 1 << 26


def free_bytes() -> int:
    """Bytes of memory that this process may still take: the least that the system and all its limits leave.

    Its limits are those of its address space and its data (``ulimit -v``, ``-d``) and of its control groups.
    """
    return min(_system_free(), _limits_free(), *_control_groups_free())


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
    """An uninitialised C-contiguous array on a cache-line boundary; a large one on that of a large page.

    Raises
    ------
    OutOfMemory
        If it would not fit; says for what, how many bytes are needed and how many are free.
    """
    needed = math.prod(shape) * np.dtype(dtype).itemsize
    if needed >= _CHECKED_BYTES and needed > (free := free_bytes()):
        raise OutOfMemory(purpose, needed, free)
    try:
        alignment = ALIGNMENT if needed < _PAGED_BYTES else _PAGE
        room = np.empty(needed + alignment, dtype=np.uint8)
    except MemoryError as error:
        raise OutOfMemory(purpose, needed, free_bytes()) from error
    return np.ndarray(shape, dtype, room, -address_of(room) % alignment)


_address = ctypes.addressof
_from_buffer: Callable[[Any], Any] = (ctypes.c_char * 0).from_buffer


def address_of(array: NDArray[Any]) -> int:
    """Where a C-contiguous array begins: `array.ctypes.data`, which takes three times as long if it is writeable."""
    return _address(_from_buffer(array)) if array.flags.writeable else array.ctypes.data


def require_memory(batch: int, n: int, dtype: str, free: int | None) -> None:
    """Refuse a batch that does not fit even once, before kernels for it are compiled; None is not known.

    Raises
    ------
    OutOfMemory
        It says how many bytes are needed, and how many are free.
    """
    needed = batch * n * n * np.dtype(dtype).itemsize
    if free is not None and needed > free:
        raise OutOfMemory(f"a batch of {batch:,} matrices of order {n} in {dtype}", needed, free)


def _system_free() -> int:
    available = system_values(Path("/proc/meminfo")).get("MemAvailable")
    return int(available.split()[0]) * 1024 if available else total_bytes()


def _limits_free() -> int:
    """What the limits of the process leave."""
    try:
        # Not at the top: other systems have no such module.
        import resource

        status = system_values(Path("/proc/self/status"))
        limits = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}
        used = {name: int(status[name].split()[0]) * 1024 for name in limits}
    except (ImportError, ValueError, KeyError, IndexError):
        return total_bytes()
    allowed = {name: resource.getrlimit(limit)[0] for name, limit in limits.items()}
    left = (allowed[name] - used[name] for name in limits if allowed[name] != resource.RLIM_INFINITY)
    return max(0, min(left, default=total_bytes()))


@dataclass(frozen=True)
class _Files:
    """What a version of control groups calls its files and numbers of memory."""

    root: str
    limit: str
    used: str
    idle: str

    def free(self, folder: Path) -> int | None:
        """What a group leaves; None if it has no limit, or cannot be seen."""
        try:
            limit = int((folder / self.limit).read_text())
            used = int((folder / self.used).read_text())
            statistics = system_values(folder / "memory.stat", separator=None)
            # Idle file pages count as used, and are given back when they are needed.
            return max(0, limit - used + int(statistics.get(self.idle, 0)))
        except (OSError, ValueError):
            return None


_VERSION_1 = _Files("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Files("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def _control_groups_free() -> Iterator[int]:
    """What the groups of this process, and those that they are in, leave."""
    for files, group in _control_groups():
        # In a container the group that the system names may be another's view: what is there counts.
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            free = files.free(Path(files.root).joinpath(*parts[:depth]))
            if free is not None:
                yield free


def _control_groups() -> Iterator[tuple[_Files, str]]:
    """The groups that decide about this process's memory, as paths below their root."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines or ["0::/"]:
        match line.split(":", 2):
            case _, "", group:
                yield _VERSION_2, group
            case _, controllers, group if "memory" in controllers.split(","):
                yield _VERSION_1, group
