"""Launches that are laid out once: each then writes down its stream and its addresses, and calls the driver.

Of ctypes, cuLaunchKernelEx with its four arguments takes a quarter of what cuLaunchKernel with its eleven does (0.3
and 1.2 µs, measured), and nothing asks first whether the context is current: the driver says when it is not.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from batchchol.backends.cuda.launching.driver import Driver

# CUlaunchConfig: the grid, the block and dynamic shared memory, then a stream and how many attributes are where.
_GEOMETRY = struct.Struct("7I4x")
_CONFIGURATION_BYTES, _WORD = 56, 8
_WORD_MASK = (1 << 64) - 1


class Contexts(Protocol):
    """What makes a context current in this thread; see `device.Device`."""

    driver: Driver

    def is_current(self) -> bool: ...

    def current(self, doing: str = "") -> AbstractContextManager[None]: ...


class _Record(NamedTuple):
    """The structure of a launch in memory, with the kernel's arguments behind it and their addresses last."""

    memory: ctypes.Array[ctypes.c_char]
    configuration: int
    parameters: int


class PreparedLaunch:
    """A kernel on a fixed grid, whose first arguments are `addresses` and whose last ones are the same `words` ever.

    `geometry` is how many blocks of how many threads, and the bytes of dynamic shared memory. It is launched plainly,
    also if it waits for its predecessors itself.
    """

    __slots__ = ("_entry", "_geometry", "_gpu", "_handle", "_launch", "_spare", "_varying", "_words")

    def __init__(
        self,
        gpu: Contexts,
        handle: int,
        entry: str,
        geometry: tuple[int, int, int],
        addresses: int,
        words: Sequence[int],
    ) -> None:
        self._gpu, self._handle, self._entry = gpu, handle, entry
        self._geometry, self._words = geometry, tuple(words)
        self._launch = gpu.driver.launch_configured
        self._varying = struct.Struct(f"{3 + addresses}Q")
        # Records that no thread is using.
        self._spare = [self._record()]

    @property
    def laid_out(self) -> tuple[int, tuple[int, int, int], tuple[int, ...]]:
        """The handle of the kernel, its geometry, and the words behind its addresses, of 64 bits."""
        return self._handle, self._geometry, tuple([word & _WORD_MASK for word in self._words])

    def __call__(self, stream: int, *addresses: int) -> None:
        """Queue it on a stream, 0 for the default one."""
        try:
            record = self._spare.pop()
        except IndexError:
            record = self._record()
        self._varying.pack_into(record.memory, _GEOMETRY.size, stream, 0, 0, *addresses)
        status = self._launch(record.configuration, self._handle, record.parameters, None)
        if status:
            self._launch_in_context(record, status)
        # The driver has copied what is in it.
        self._spare.append(record)

    def _launch_in_context(self, record: _Record, status: int) -> None:
        """Launch again where the context was not current; raise what else the driver refused."""
        if not self._gpu.is_current():
            with self._gpu.current(f"launching {self._entry}"):
                status = self._launch(record.configuration, self._handle, record.parameters, None)
        blocks, threads, _ = self._geometry
        self._gpu.driver.check(status, f"launching {self._entry} on {blocks:,} blocks of {threads} threads")

    def _record(self) -> _Record:
        blocks, threads, shared_bytes = self._geometry
        count = self._varying.size // _WORD - 3 + len(self._words)
        behind = _CONFIGURATION_BYTES + count * _WORD
        memory = ctypes.create_string_buffer(behind + count * _WORD)
        start = ctypes.addressof(memory)
        first = start + _CONFIGURATION_BYTES
        _GEOMETRY.pack_into(memory, 0, blocks, 1, 1, threads, 1, 1, shared_bytes)
        words = self.laid_out[-1]
        struct.pack_into(f"{len(words)}Q", memory, behind - len(words) * _WORD, *words)
        struct.pack_into(f"{count}Q", memory, behind, *range(first, start + behind, _WORD))
        return _Record(memory, start, start + behind)
