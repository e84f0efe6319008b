"""PyCUDA and the CUDA driver on a machine that has neither: memory is the host's, kernels are emulated.

`install(monkeypatch)` puts modules `pycuda`, `pycuda.driver` and `pycuda.gpuarray` in place of PyCUDA's, with as much
of them as the library uses, and a `FakeDriver` in place of libcuda; kernels run through tests/cuda_programs.py.
The `FakeGpu` that it returns says what happened and can be told to fail. PyCUDA's rules hold: a context is current in
the thread that pushed it, allocating takes one, and its stack is to be empty in the end.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchchol import backends
from batchchol.cuda import device, memory
from batchchol.cuda.artifacts import Module
from batchchol.cuda.driver import Driver
from batchchol.stats import CompileStats
from kernelgen import KernelSource

from .cuda_programs import compile_program

CONTEXT = 0xC0DE
ILLEGAL_ADDRESS, NO_BINARY, INVALID_VALUE = 700, 209, 1
SECONDS_PER_STEP = 1e-9
_DESCRIPTIONS = {
    ILLEGAL_ADDRESS: "an illegal memory access was encountered",
    NO_BINARY: "no kernel image",
    INVALID_VALUE: "invalid argument",
}
_ATTRIBUTES = {
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
    load_status: int = 0
    clock: float = 0.0
    seconds_per_launch: float = 1e-6
    pieces: dict[int, Any] = field(default_factory=dict)
    launches: list[tuple[str, int, int]] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    capturing: set[int] = field(default_factory=set)
    other_gpus: dict[int, int] = field(default_factory=dict)
    built: list[str] = field(default_factory=list)
    preferred: list[tuple[str, str]] = field(default_factory=list)
    # Dynamic shared memory that a kernel's launches may have.
    allowed: dict[str, int] = field(default_factory=dict)
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

    def require(self, *, pushed: bool = False) -> None:
        """Fail as PyCUDA does: without a context, or after a kernel failed."""
        if not self.current or (pushed and not self.stack):
            raise LogicError("no currently active context?")
        if self.status:
            raise LogicError(f"failed: {_DESCRIPTIONS[self.status]}")

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
        return Piece(self, address, nbytes)


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
            self.gpu.used -= self.nbytes


class Context:
    """PyCUDA's."""

    gpu: FakeGpu

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.detached = False

    def push(self) -> None:
        self.gpu.stack.append((self, self.gpu.current))
        self.gpu.current = self.handle

    @classmethod
    def pop(cls) -> None:
        _, cls.gpu.current = cls.gpu.stack.pop()

    @classmethod
    def get_current(cls) -> Context | None:
        return cls.gpu.stack[-1][0] if cls.gpu.stack else None

    def detach(self) -> None:
        self.detached = True


class GPUArray:
    """PyCUDA's, C-contiguous."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, gpudata: Any = None, base: Any = None) -> None:
        self.shape, self.dtype, self.gpudata, self.base = tuple(shape), np.dtype(dtype), gpudata, base
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize
        self.flags = SimpleNamespace(c_contiguous=True)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        address = int(self.gpudata or 0)
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (address, False), "version": 3}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> GPUArray:
        first, last, _ = rows.indices(self.shape[0])
        apart = self.nbytes // max(self.shape[0], 1)
        return GPUArray((last - first, *self.shape[1:]), self.dtype, int(self.gpudata) + first * apart, self)

    def reshape(self, *shape: Any) -> GPUArray:
        flat = shape[0] if isinstance(shape[0], tuple) else shape
        if flat == self.shape:
            return self
        assert np.prod(flat) == self.size
        return GPUArray(flat, self.dtype, int(self.gpudata), self)

    def get(self) -> np.ndarray[Any, Any]:
        host = np.empty(self.shape, self.dtype)
        if self.size:
            ctypes.memmove(host.ctypes.data, int(self.gpudata), self.nbytes)
        return host


class FakeDriver(Driver):
    """libcuda, and the loading and running of kernels."""

    gpu: FakeGpu

    def __init__(self) -> None:
        pass

    def current_context(self) -> int:
        return self.gpu.current

    def make_current(self, context: int) -> None:
        self.gpu.current = context

    def synchronize(self) -> None:
        self.check(self.gpu.status, "waiting for the GPU")

    def load(self, image: bytes, name: str) -> int:
        self.check(self.gpu.load_status, f"loading {name}")
        return 1

    def function(self, module: int, entry: str, *, shared_bytes: int, cache: str) -> int:
        self.gpu.allowed[entry] = shared_bytes
        return list(self.gpu.sources).index(entry)

    def configure(self, function: int, entry: str, *, shared_bytes: int, cache: str) -> None:
        self.gpu.preferred.append((entry, cache))
        self.gpu.allowed[entry] = shared_bytes

    def resident_blocks(self, function: int, threads: int, shared_bytes: int, entry: str) -> int:
        return 1024 // threads

    def launch(
        self,
        function: int,
        blocks: int,
        threads: int,
        shared_bytes: int,
        stream: int,
        parameters: int,
        entry: str,
        *,
        pdl: bool = False,
    ) -> None:
        assert self.gpu.current == CONTEXT, "launched without the context"
        self.check(self.gpu.status, f"launching {entry}")
        assert shared_bytes <= self.gpu.allowed.get(entry, 0), "more dynamic shared memory than the kernel may have"
        self.gpu.launches.append((entry, blocks, stream))
        self.gpu.clock += self.gpu.seconds_per_launch
        source = self.gpu.sources[entry]
        program = compile_program((source,))
        codes = program.parameters(entry)
        addresses = (ctypes.c_void_p * len(codes)).from_address(parameters)
        values = [_argument(code, int(address or 0)) for code, address in zip(codes, addresses, strict=True)]
        assert source.launch is not None
        if entry.startswith("multiply_add"):
            # It is there to take time: so many steps.
            self.gpu.clock += float(values[2]) * SECONDS_PER_STEP
            return
        # The geometry is the caller's: one code may be launched on blocks of any size.
        items = source.launch.items * threads // source.launch.threads
        geometry = replace(source.launch, threads=threads, items=items, shared_bytes=shared_bytes, resident=None)
        launched = replace(source, launch=geometry)
        with self.gpu.emulation:
            program.launch_unfenced(launched, blocks * items, *values)

    def fill_words(self, address: int, word: int, count: int, stream: int) -> None:
        (ctypes.c_uint32 * count).from_address(address)[:] = [word & 0xFFFFFFFF] * count

    def wait_for(self, other: int, stream: int) -> None:
        self.gpu.waits.append((other, stream))

    def is_capturing(self, stream: int) -> bool:
        return stream in self.gpu.capturing

    def relaxed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def device_of(self, address: int) -> int | None:
        return self.gpu.other_gpus.get(address, 0 if address in self.gpu.pieces else None)

    def _describe(self, status: int) -> str:
        return _DESCRIPTIONS[status]


def _argument(code: str, address: int) -> Any:
    if code.startswith("*"):
        return ctypes.c_uint64.from_address(address).value
    size = np.dtype(code).itemsize
    return np.frombuffer(ctypes.string_at(address, size), code)[0]


def install(patch: pytest.MonkeyPatch, folder: Path) -> FakeGpu:
    """Put the fakes in place, and have the library find the GPU anew."""
    gpu = FakeGpu()
    patch.setattr(Context, "gpu", gpu, raising=False)
    patch.setattr(FakeDriver, "gpu", gpu, raising=False)
    modules = _modules(gpu)
    for name, module in modules.items():
        patch.setitem(sys.modules, name, module)
    patch.setattr(device, "Driver", FakeDriver)
    patch.setattr(device, "build", lambda source, arch: _build(gpu, source, folder))
    patch.setattr(device.atexit, "register", gpu.at_exit.append)
    patch.setattr(device.os, "register_at_fork", lambda *, after_in_child: gpu.after_fork.append(after_in_child))
    forget()
    return gpu


def forget() -> None:
    """Have the library find the GPU anew at its next use."""
    for cached in (device.device, memory._pool, memory._blank, backends._make):
        cached.cache_clear()


def _build(gpu: FakeGpu, source: KernelSource, folder: Path) -> Module:
    gpu.built.append(source.entry)
    gpu.sources[source.entry] = source
    path = folder / f"{source.entry}.cubin"
    path.write_bytes(b"a cubin")
    return Module(path, "cubin", source.entry, CompileStats(0.5, 100, "fake nvcc", 40, 0, 0))


def _modules(gpu: FakeGpu) -> dict[str, ModuleType]:
    package, driver, gpuarray = (ModuleType(name) for name in ("pycuda", "pycuda.driver", "pycuda.gpuarray"))
    package.__dict__.update(driver=driver, gpuarray=gpuarray, __path__=[])
    gpuarray.__dict__.update(GPUArray=GPUArray)

    def init() -> None:
        if gpu.init_error:
            raise LogicError(f"cuInit failed: {gpu.init_error}")

    def copy(destination: int, source: int, nbytes: int) -> None:
        gpu.require()
        ctypes.memmove(destination, source, nbytes)

    class Device:
        def __init__(self, ordinal: int) -> None:
            assert ordinal == 0

        count = staticmethod(lambda: gpu.gpus)
        name = staticmethod(lambda: "Fake GPU")
        compute_capability = staticmethod(lambda: (9, 0))
        total_memory = staticmethod(lambda: gpu.total)
        pci_bus_id = staticmethod(lambda: "0000:01:00.0")
        get_attribute = staticmethod(lambda attribute: attribute)
        retain_primary_context = staticmethod(lambda: Context(CONTEXT))

    class Event:
        def record(self) -> None:
            self.time = gpu.clock

        def synchronize(self) -> None:
            gpu.require()

        def time_till(self, other: Event) -> float:
            return (other.time - self.time) * 1e3

    def memory_info() -> tuple[int, int]:
        gpu.require()
        return gpu.total - gpu.used, gpu.total

    driver.__dict__.update(
        Error=Error,
        LogicError=LogicError,
        MemoryError=OutOfDeviceMemory,
        Context=Context,
        Device=Device,
        Event=Event,
        init=init,
        device_attribute=SimpleNamespace(**_ATTRIBUTES),
        get_driver_version=lambda: 13000,
        mem_alloc=gpu.allocate,
        mem_get_info=memory_info,
        memcpy_htod=lambda address, a: copy(address, a.ctypes.data, a.nbytes),
        memcpy_dtoh=lambda a, address: copy(a.ctypes.data, address, a.nbytes),
        memcpy_dtod_async=copy,
    )
    return {"pycuda": package, "pycuda.driver": driver, "pycuda.gpuarray": gpuarray}
