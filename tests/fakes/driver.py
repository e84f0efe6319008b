"""libcuda on a machine that has none: what the library asks of it, with kernels emulated by the `FakeGpu`."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from batchchol.backends.cuda.launching.driver import Driver, _Configuration

from .gpu import CONTEXT, DESCRIPTIONS, INVALID_CONTEXT, FakeGpu

# Handles of the driver's that a GPU has, at most.
_HANDLES = 1 << 20


class FakeDriver(Driver):
    """libcuda, and the loading and running of kernels."""

    gpu: FakeGpu

    def __init__(self) -> None:
        pass

    def current_context(self) -> int:
        return self.gpu.current

    def is_pinned(self, address: int) -> bool:
        return False

    def urgent_stream(self) -> int:
        return 0x6000

    def current_device(self) -> int:
        return self.gpu.number if 0 <= self.gpu.number < self.gpu.gpus else 0

    def make_current(self, context: int) -> None:
        self.gpu.current = context

    def synchronize(self) -> None:
        self.check(self.gpu.status, "waiting for the GPU")

    def load(self, image: bytes, name: str) -> int:
        self.check(self.gpu.load_error(image), f"loading {name}")
        self.gpu.loaded.append("driver")
        return 1

    def function(self, module: int, entry: str, *, shared_bytes: int, cache: str) -> int:
        self.configure(0, entry, shared_bytes=shared_bytes, cache=cache)
        return list(self.gpu.sources).index(entry) + _HANDLES * self.gpu.number

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
        self.check(self.gpu.status, f"launching {entry}")
        assert function // _HANDLES == self.gpu.number, "launched on another GPU than it was loaded on"
        assert shared_bytes <= self.gpu.allowed.get(entry, 0), "more dynamic shared memory than the kernel may have"
        codes = self.gpu.parameters(entry)
        addresses = (ctypes.c_void_p * len(codes)).from_address(parameters)
        values = [_argument(code, int(address or 0)) for code, address in zip(codes, addresses, strict=True)]
        self.gpu.early += [entry] * pdl
        self.gpu.run(entry, blocks, threads, shared_bytes, stream, values)

    def launch_configured(self, configuration: int, function: int, parameters: int, _: None) -> int:
        if self.gpu.current != CONTEXT + function // _HANDLES:
            return INVALID_CONTEXT
        given, entry = _Configuration.from_address(configuration), list(self.gpu.sources)[function % _HANDLES]
        assert given.count == 0, "launched early"
        grid, block = (given.grid_y, given.grid_z), (given.block_y, given.block_z)
        assert grid == block == (1, 1)
        self.launch(function, given.grid_x, given.block_x, given.shared_bytes, given.stream or 0, parameters, entry)
        return 0

    def fill_words(self, address: int, word: int, count: int, stream: int) -> None:
        (ctypes.c_uint32 * count).from_address(address)[:] = [word & 0xFFFFFFFF] * count

    def fetch(self, address: int, place: int, nbytes: int) -> None:
        self.synchronize()
        ctypes.memmove(place, address, nbytes)

    def wait_for(self, other: int, stream: int) -> None:
        self.gpu.waits.append((other, stream))

    def is_capturing(self, stream: int) -> bool:
        return stream in self.gpu.capturing

    def relaxed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def device_of(self, address: int) -> int | None:
        return self.gpu.other_gpus.get(address, 0 if address in self.gpu.pieces else None)

    def _describe(self, status: int) -> str:
        return DESCRIPTIONS[status]


def _argument(code: str, address: int) -> Any:
    if code.startswith("*"):
        return ctypes.c_uint64.from_address(address).value
    size = np.dtype(code).itemsize
    return np.frombuffer(ctypes.string_at(address, size), code)[0]
