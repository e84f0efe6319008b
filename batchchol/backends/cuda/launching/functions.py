"""Kernels that are loaded: by PyCUDA, which launches single calls, and by the driver for what PyCUDA cannot launch.

PyCUDA gives away no handle of its functions, and takes none of others: a kernel that is used in both ways is loaded
twice, by each when it is first needed. Both stay loaded for as long as the process lives.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from batchchol.artifacts.cuda_modules import Module, build, rebuild
from batchchol.artifacts.stats import CompileStats
from batchchol.backends.cuda.launching.driver import Driver
from batchchol.errors import CacheError, CompileError, CompilerNotFound, DeviceError, DeviceLost
from kernelgen import KernelSource, Launch

# The format that PyCUDA packs an argument by: 64 bits, as all of the library's kernels take them.
WORD = "Q"


class Arguments:
    """Room for the arguments of a launch, 64 bits each, and for their addresses, as the driver wants them."""

    __slots__ = ("_addresses", "address", "words")

    def __init__(self, count: int) -> None:
        self.words = (ctypes.c_uint64 * count)()
        first = ctypes.addressof(self.words)
        self._addresses = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        self.address = ctypes.addressof(self._addresses)


@dataclass(eq=False)
class Code:
    """The code of a kernel on the GPU, as far as it is loaded: PyCUDA's function, and the driver's handle.

    `launch` is what both are configured for: the shared memory that a launch may have, and the split of on-chip
    memory. Code without a `source` is another library's, and has a handle.
    """

    launch: Launch
    source: KernelSource | None = None
    handle: int | None = None
    pycuda: Any = None
    # PyCUDA's module, and how many arguments its function is prepared for.
    module: Any = None
    prepared: int = -1


@dataclass(frozen=True)
class Function:
    """A kernel that is loaded; `spare` is room for arguments that no launch by the driver is using."""

    code: Code
    entry: str
    launch: Launch
    stats: CompileStats
    spare: list[Arguments] = field(default_factory=list, repr=False, compare=False)


class Loader:
    """Loads kernels into the context of one GPU; `current` makes that context current, saying what for."""

    def __init__(
        self,
        pycuda: Any,
        driver: Driver,
        architecture: str,
        current: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._pycuda, self._driver = pycuda, driver
        self._architecture, self._current = architecture, current
        self._functions: dict[KernelSource, Function] = {}
        # By the files that they came from, which several kernels may share.
        self._pycuda_modules: dict[str, Any] = {}
        self._driver_modules: dict[str, int] = {}
        self._lock = threading.RLock()

    def function(self, source: KernelSource, *, by_driver: bool = False) -> Function:
        """The kernel of a source, built and loaded at most once: by PyCUDA unless the driver will launch it."""
        found = self._functions.get(source)
        if found is None:
            with self._lock:
                found = self._functions.get(source) or self._load(source, by_driver)
                self._functions[source] = found
        return found

    def prepared(self, function: Function, count: int) -> Any:
        """PyCUDA's function of a kernel, prepared for `count` arguments."""
        code = function.code
        with self._lock:
            if code.pycuda is None:
                self._build(code, self._load_by_pycuda)
            if code.prepared != count:
                code.pycuda.prepare(WORD * count)
                code.prepared = count
        return code.pycuda

    def own(self, function: Function, formats: str) -> Any:
        """A function of PyCUDA's for the caller alone, prepared for arguments of these formats."""
        code = function.code
        with self._lock, self._current(f"loading {function.entry}"):
            if code.pycuda is None:
                self._build(code, self._load_by_pycuda)
            return code.module.get_function(function.entry).prepare(formats)

    def handle(self, function: Function) -> int:
        """The driver's handle of a kernel, which is loaded if need be."""
        code = function.code
        with self._lock:
            if code.handle is None:
                self._build(code, self._load_by_driver)
        assert code.handle is not None
        return code.handle

    def configure(self, function: Function) -> None:
        """Configure a kernel's next launches as its launch says: kernels of the same code may differ in that."""
        with self._lock, self._current(f"configuring {function.entry}"):
            code = function.code
            code.launch = function.launch
            if code.pycuda is not None:
                self._configure(code.pycuda, code.launch)
            if code.handle is not None:
                shared, cache = code.launch.shared_bytes, code.launch.cache
                self._driver.configure(code.handle, function.entry, shared_bytes=shared, cache=cache)

    def _load(self, source: KernelSource, by_driver: bool) -> Function:
        if source.launch is None:
            raise ValueError(f"source: {source.entry} has no launch geometry, expected the source of a GPU kernel")
        code = Code(source.launch, source)
        module = self._build(code, self._load_by_driver if by_driver else self._load_by_pycuda)
        return Function(code, source.entry, source.launch, module.stats)

    def _build(self, code: Code, load: Callable[[Code, Module], None]) -> Module:
        """Build a kernel and load it; what the cache had, and the GPU does not take, is built again once."""
        assert code.source is not None, "another library loads its own kernels"
        module = build(code.source, self._architecture)
        try:
            load(code, module)
        except DeviceLost:
            raise
        except DeviceError as error:
            module = self._built_again(code.source, module, error)
            load(code, module)
        return module

    def _built_again(self, source: KernelSource, refused: Module, error: DeviceError) -> Module:
        """The module in place of one that may be another GPU's, whatever its record says."""
        try:
            module = rebuild(source, self._architecture)
        except (CompilerNotFound, CompileError, CacheError):
            raise error from None
        if module.data == refused.data:
            raise error
        return module

    def _load_by_pycuda(self, code: Code, module: Module) -> None:
        path = str(module.path)
        with self._current(f"loading {path}"), self._driver.relaxed():
            if path not in self._pycuda_modules:
                self._pycuda_modules[path] = self._module(module)
            code.module = self._pycuda_modules[path]
            loaded = code.module.get_function(module.entry)
            self._configure(loaded, code.launch)
        code.pycuda = loaded

    def _module(self, module: Module) -> Any:
        try:
            return self._pycuda.module_from_buffer(_image(module))
        except self._pycuda.Error:
            # PyCUDA's errors have no number: the driver is asked for it.
            self._driver.load(_image(module), self._said(module))
            raise

    def _load_by_driver(self, code: Code, module: Module) -> None:
        path, launch = str(module.path), code.launch
        with self._current(f"loading {path}"), self._driver.relaxed():
            if path not in self._driver_modules:
                self._driver_modules[path] = self._driver.load(_image(module), self._said(module))
            code.handle = self._driver.function(
                self._driver_modules[path], module.entry, shared_bytes=launch.shared_bytes, cache=launch.cache
            )

    def _configure(self, loaded: Any, launch: Launch) -> None:
        """What `Driver.configure` does, for a function of PyCUDA's."""
        caches, attributes = self._pycuda.func_cache, self._pycuda.function_attribute
        loaded.set_cache_config(caches.PREFER_SHARED if launch.cache == "shared" else caches.PREFER_L1)
        if launch.shared_bytes:
            loaded.set_attribute(attributes.MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared_bytes)

    def _said(self, module: Module) -> str:
        return f"{module.path} for {self._architecture}"


def _image(module: Module) -> bytes:
    """A module as the driver reads it: PTX is text that ends with a zero."""
    return module.data + b"\0"
