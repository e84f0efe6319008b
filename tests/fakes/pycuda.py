"""PyCUDA and the CUDA driver on a machine that has neither: memory is the host's, kernels are emulated.

`install(monkeypatch)` puts modules `pycuda`, `pycuda.driver` and `pycuda.gpuarray` in place of PyCUDA's, with as much
of them as the library uses, and a `FakeDriver` in place of libcuda; kernels run through tests/emulation/programs.py.
The `FakeGpu` that it returns says what happened and can be told to fail. PyCUDA's rules hold: a context is current in
the thread that pushed it, allocating and loading take one, functions are launched on its own streams alone, with a
buffer of just their arguments, and its stack is to be empty in the end.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchchol import backends
from batchchol.artifacts.cuda_cache import Module
from batchchol.artifacts.stats import CompileStats
from batchchol.backends.cuda import device, memory
from batchchol.backends.cuda.launching import functions
from kernelgen import KernelSource

from .driver import FakeDriver
from .gpu import (
    ATTRIBUTES,
    CONTEXT,
    DESCRIPTIONS,
    FOREIGN_CODE,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    NO_BINARY,
    Error,
    FakeGpu,
    LogicError,
    OutOfDeviceMemory,
)

__all__ = [
    "CONTEXT",
    "FOREIGN_CODE",
    "ILLEGAL_ADDRESS",
    "INVALID_VALUE",
    "NO_BINARY",
    "Context",
    "FakeDriver",
    "FakeGpu",
    "Function",
    "LogicError",
    "forget",
    "install",
]


class Context:
    """PyCUDA's."""

    gpu: FakeGpu

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.detached = False

    def push(self) -> None:
        # Of what was pushed PyCUDA leaves only the last one with the driver.
        below = self.gpu.stack[0][1] if self.gpu.stack else self.gpu.current
        self.gpu.stack.append((self, below))
        self.gpu.current = self.handle

    @classmethod
    def pop(cls) -> None:
        _, below = cls.gpu.stack.pop()
        cls.gpu.current = cls.gpu.stack[-1][0].handle if cls.gpu.stack else below

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


class Stream:
    """PyCUDA's."""

    made = 0

    def __init__(self) -> None:
        Stream.made += 1
        self.handle = 0x5000 + Stream.made

    def synchronize(self) -> None:
        """All work is done when it has been queued."""


class Function:
    """PyCUDA's: prepared for formats of the module struct, and launched with a buffer that they make."""

    gpu: FakeGpu

    def __init__(self, entry: str) -> None:
        self.entry, self.number = entry, self.gpu.number

    def set_cache_config(self, cache: str) -> None:
        self.gpu.preferred_by_pycuda.append((self.entry, cache))

    def set_attribute(self, attribute: str, value: int) -> None:
        assert attribute == "MAX_DYNAMIC_SHARED_SIZE_BYTES"
        self.gpu.allowed_by_pycuda[self.entry] = value

    def prepare(self, arg_types: str) -> Function:
        self.arg_format = ""
        for arg_type in arg_types:
            self.arg_format += arg_type
        return self

    def prepared_call(self, grid: Any, block: Any, *args: Any, shared_size: int = 0) -> None:
        self._launch(grid, block, struct.pack(self.arg_format, *args), shared_size, None)

    def prepared_async_call(self, grid: Any, block: Any, stream: Any, *args: Any, shared_size: int = 0) -> None:
        self._launch(grid, block, struct.pack(self.arg_format, *args), shared_size, stream)

    def __call__(self, *args: Any, grid: Any, block: Any, stream: Any = None, shared: int = 0) -> None:
        buffer = struct.pack("".join(_format(arg) for arg in args), *map(_packed, args))
        self._launch(grid, block, buffer, shared, stream)

    def _launch(self, grid: Any, block: Any, buffer: bytes, shared_bytes: int, stream: Any) -> None:
        assert isinstance(grid, tuple)
        assert isinstance(block, tuple)
        assert stream is None or isinstance(stream, Stream), "PyCUDA takes its own streams alone"
        if not self.gpu.current or self.gpu.status:
            raise LogicError(f"cuLaunchKernel failed: {DESCRIPTIONS.get(self.gpu.status, 'invalid device context')}")
        # 48 KiB need no leave.
        allowed = max(self.gpu.allowed_by_pycuda.get(self.entry, 0), 48 << 10)
        assert shared_bytes <= allowed, "more dynamic shared memory than the kernel may have"
        codes = self.gpu.parameters(self.entry)
        formats = "".join("P" if code.startswith("*") else np.dtype(code).char for code in codes)
        if len(buffer) != struct.calcsize(formats):
            raise LogicError("cuLaunchKernel failed: invalid argument")
        assert self.number == self.gpu.number, "launched on another GPU than it was loaded on"
        self.gpu.by_pycuda.append(self.entry)
        queue = 0 if stream is None else stream.handle
        values = struct.unpack(formats, buffer)
        self.gpu.run(self.entry, grid[0], block[0], shared_bytes, queue, values)


def _format(arg: Any) -> str:
    if isinstance(arg, np.number):
        return str(arg.dtype.char)
    if hasattr(arg, "__cuda_array_interface__"):
        return "P"
    raise TypeError("invalid type on parameter (0-based)")


def _packed(arg: Any) -> Any:
    return arg if isinstance(arg, np.number) else arg.__cuda_array_interface__["data"][0]


def install(patch: pytest.MonkeyPatch, folder: Path) -> FakeGpu:
    """Put the fakes in place, and have the library find the GPU anew."""
    gpu = FakeGpu()
    patch.setattr(Context, "gpu", gpu, raising=False)
    patch.setattr(FakeDriver, "gpu", gpu, raising=False)
    patch.setattr(Function, "gpu", gpu, raising=False)
    modules = _modules(gpu)
    for name, module in modules.items():
        patch.setitem(sys.modules, name, module)
    patch.setattr(device, "Driver", FakeDriver)
    for name in ("build", "rebuild"):
        patch.setattr(functions, name, lambda source, arch: _build(gpu, source, folder))
    patch.setattr(device.atexit, "register", gpu.at_exit.append)
    patch.setattr(device.os, "register_at_fork", lambda *, after_in_child: gpu.after_fork.append(after_in_child))
    forget()
    return gpu


def forget() -> None:
    """Have the library find the GPU anew at its next use."""
    for cached in (device.device_of, memory._pool_of, memory._blank, backends._make):
        cached.cache_clear()


def _build(gpu: FakeGpu, source: KernelSource, folder: Path) -> Module:
    gpu.built.append(source.entry)
    gpu.sources[source.entry] = source
    path = folder / f"{source.entry}.cubin"
    path.write_bytes(b"a cubin")
    return Module(path, b"a cubin", "cubin", source.entry, CompileStats(0.5, 100, "fake nvcc", 40, 0, 0))


def _modules(gpu: FakeGpu) -> dict[str, ModuleType]:
    package, driver, gpuarray = (ModuleType(name) for name in ("pycuda", "pycuda.driver", "pycuda.gpuarray"))
    package.__dict__.update(driver=driver, gpuarray=gpuarray, __path__=[])
    gpuarray.__dict__.update(GPUArray=GPUArray)
    driver.__dict__.update(
        Error=Error,
        LogicError=LogicError,
        MemoryError=OutOfDeviceMemory,
        Context=Context,
        Device=_device_class(gpu),
        Event=_event_class(gpu),
        Function=Function,
        Stream=Stream,
        func_cache=SimpleNamespace(PREFER_L1="l1", PREFER_SHARED="shared"),
        function_attribute=SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES="MAX_DYNAMIC_SHARED_SIZE_BYTES"),
        device_attribute=SimpleNamespace(**ATTRIBUTES),
        get_driver_version=lambda: 13000,
        **_loading(gpu),
        **_memory(gpu),
    )
    return {"pycuda": package, "pycuda.driver": driver, "pycuda.gpuarray": gpuarray}


def _device_class(gpu: FakeGpu) -> type:
    class Device:
        def __init__(self, ordinal: int) -> None:
            self.retain_primary_context = lambda: Context(CONTEXT + ordinal)

        count = staticmethod(lambda: gpu.gpus)
        name = staticmethod(lambda: "Fake GPU")
        compute_capability = staticmethod(lambda: (9, 0))
        total_memory = staticmethod(lambda: gpu.total)
        pci_bus_id = staticmethod(lambda: "0000:01:00.0")
        get_attribute = staticmethod(lambda attribute: attribute)

    return Device


def _event_class(gpu: FakeGpu) -> type:
    class Event:
        def record(self) -> None:
            self.time = gpu.clock

        def synchronize(self) -> None:
            gpu.require()

        def time_till(self, other: Event) -> float:
            return (other.time - self.time) * 1e3

    return Event


def _loading(gpu: FakeGpu) -> dict[str, Any]:
    class Module:
        def get_function(self, entry: str) -> Function:
            gpu.require(pushed=True)
            if entry not in gpu.sources:
                raise LogicError("cuModuleGetFunction failed: named symbol not found")
            return Function(entry)

    def init() -> None:
        if gpu.init_error:
            raise LogicError(f"cuInit failed: {gpu.init_error}")

    def load(image: bytes) -> Module:
        gpu.require(pushed=True)
        if status := gpu.load_error(image):
            raise LogicError(f"cuModuleLoadDataEx failed: {DESCRIPTIONS[status]} - ")
        gpu.loaded.append("pycuda")
        return Module()

    return {"init": init, "module_from_buffer": load}


def _memory(gpu: FakeGpu) -> dict[str, Any]:
    def copy(destination: int, source: int, nbytes: int) -> None:
        gpu.require()
        ctypes.memmove(destination, source, nbytes)

    def info() -> tuple[int, int]:
        gpu.require()
        return gpu.total - gpu.used, gpu.total

    return {
        "mem_alloc": gpu.allocate,
        "mem_get_info": info,
        "memcpy_htod": lambda address, a: copy(address, a.ctypes.data, a.nbytes),
        "memcpy_dtoh": lambda a, address: copy(a.ctypes.data, address, a.nbytes),
        "memcpy_dtod_async": copy,
        "memcpy_htod_async": lambda address, a, stream: copy(address, a.ctypes.data, a.nbytes),
        "memcpy_dtoh_async": lambda a, address, stream: copy(a.ctypes.data, address, a.nbytes),
        "pagelocked_empty": np.empty,
    }
