"""What the fakes of PyCUDA and of the CUDA driver have in common: a GPU whose memory is the host's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernelgen import KernelSource

from ..emulation.programs import compile_program

CONTEXT = 0xC0DE
ILLEGAL_ADDRESS, NO_BINARY, INVALID_VALUE, INVALID_CONTEXT = 700, 209, 1, 201
SECONDS_PER_STEP = 1e-9
FOREIGN_CODE = b"code of another GPU"
DESCRIPTIONS = {
    ILLEGAL_ADDRESS: "an illegal memory access was encountered",
    NO_BINARY: "no kernel image",
    INVALID_VALUE: "invalid argument",
    INVALID_CONTEXT: "invalid device context",
}
ATTRIBUTES = {
    "L2_CACHE_SIZE": 1 << 16,
    "MULTIPROCESSOR_COUNT": 4,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "CLOCK_RATE": 1980000,
    "MEMORY_CLOCK_RATE": 3201000,
}


class Error(Exception):
    """PyCUDA's."""


class LogicError(Error):
    """PyCUDA's."""


class OutOfDeviceMemory(Error):
    """PyCUDA's MemoryError."""


@dataclass
class FakeGpu:
    """What the GPU holds and what it was asked to do."""

    total: int = 1 << 30
    used: int = 0
    status: int = 0
    init_error: str = ""
    gpus: int = 1
    # What ran where, by the numbers of the GPUs.
    ran_on: list[int] = field(default_factory=list)
    load_status: int = 0
    clock: float = 0.0
    seconds_per_launch: float = 1e-6
    pieces: dict[int, Any] = field(default_factory=dict)
    launches: list[tuple[str, int, int]] = field(default_factory=list)
    # Of these the ones that PyCUDA made, and those that the driver made early.
    by_pycuda: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    # Images that were loaded, by PyCUDA and by the driver.
    loaded: list[str] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    capturing: set[int] = field(default_factory=set)
    other_gpus: dict[int, int] = field(default_factory=dict)
    built: list[str] = field(default_factory=list)
    # Which of on-chip memory's uses a kernel's launches prefer, by the driver and by PyCUDA.
    preferred: list[tuple[str, str]] = field(default_factory=list)
    preferred_by_pycuda: list[tuple[str, str]] = field(default_factory=list)
    # Dynamic shared memory that a kernel's launches may have, by the driver and by PyCUDA.
    allowed: dict[str, int] = field(default_factory=dict)
    allowed_by_pycuda: dict[str, int] = field(default_factory=dict)
    sources: dict[str, KernelSource] = field(default_factory=dict)
    at_exit: list[Callable[[], None]] = field(default_factory=list)
    after_fork: list[Callable[[], None]] = field(default_factory=list)
    threads: threading.local = field(default_factory=threading.local)
    emulation: threading.Lock = field(default_factory=threading.Lock)
    accounts: threading.Lock = field(default_factory=threading.Lock)
    allocations: int = 0

    @property
    def stack(self) -> list[Any]:
        """PyCUDA's contexts of this thread."""
        return self.threads.__dict__.setdefault("stack", [])

    @property
    def current(self) -> int:
        """CUDA's context of this thread."""
        return int(self.threads.__dict__.get("current", 0))

    @current.setter
    def current(self, context: int) -> None:
        self.threads.current = context

    @property
    def number(self) -> int:
        """That of the GPU whose context is current in this thread."""
        return self.current - CONTEXT

    def load_error(self, image: bytes) -> int:
        """The driver's number for why it does not take a module; 0 if it does."""
        return NO_BINARY if image.startswith(FOREIGN_CODE) else self.load_status

    def require(self, *, pushed: bool = False) -> None:
        """Fail as PyCUDA does: without a context, or after a kernel failed."""
        if not self.current or (pushed and not self.stack):
            raise LogicError("no currently active context?")
        if self.status:
            raise LogicError(f"failed: {DESCRIPTIONS[self.status]}")

    def allocate(self, nbytes: int) -> Piece:
        self.require(pushed=True)
        with self.accounts:
            if self.used + nbytes > self.total:
                raise OutOfDeviceMemory("cuMemAlloc failed: out of memory")
            self.used += nbytes
            self.allocations += 1
        room = np.full(nbytes + 512, 0xA5, np.uint8)
        address = -(-room.ctypes.data // 512) * 512
        self.pieces[address] = room
        if self.number:
            self.other_gpus[address] = self.number
        return Piece(self, address, nbytes)

    def parameters(self, entry: str) -> tuple[str, ...]:
        """The types of a kernel's parameters, as `cuda_programs` has them."""
        return tuple(compile_program((self.sources[entry],)).parameters(entry))

    def run(
        self, entry: str, blocks: int, threads: int, shared_bytes: int, stream: int, values: Sequence[Any]
    ) -> None:
        """What either way of launching does."""
        assert CONTEXT <= self.current < CONTEXT + self.gpus, "launched without the context"
        self.ran_on.append(self.number)
        self.launches.append((entry, blocks, stream))
        self.clock += self.seconds_per_launch
        source = self.sources[entry]
        assert source.launch is not None
        if entry.startswith("multiply_add"):
            # It is there to take time.
            self.clock += float(values[2]) * SECONDS_PER_STEP
            return
        # The geometry is the caller's: one code may be launched on blocks of any size.
        items = source.launch.items * threads // source.launch.threads
        geometry = replace(source.launch, threads=threads, items=items, shared_bytes=shared_bytes, resident=None)
        launched = replace(source, launch=geometry)
        with self.emulation:
            compile_program((source,)).launch_unfenced(launched, blocks * items, *values)


class Piece:
    """PyCUDA's DeviceAllocation: freeing it takes the context that made it."""

    def __init__(self, gpu: FakeGpu, address: int, nbytes: int) -> None:
        self.gpu, self.address, self.nbytes = gpu, address, nbytes

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        self.gpu.require(pushed=True)
        with self.gpu.accounts:
            del self.gpu.pieces[self.address]
            self.gpu.other_gpus.pop(self.address, None)
            self.gpu.used -= self.nbytes
