"""The embedded default: generated SIMD C on the host's cores."""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batchchol import memory
from batchchol.backends.base import Availability, Kernel
from batchchol.batch import Batch
from batchchol.compiler import find_compiler
from batchchol.errors import BackendUnavailable, BatchcholError, OutOfMemory
from batchchol.layouts import padded, stride
from batchchol.native import CompileStats, load, supported_targets
from batchchol.parallel import available_threads, over_ranges
from kernelgen import TARGETS, KernelSpec, Layout, generate

_ARGUMENTS = (*(ctypes.c_void_p,) * 3, *(ctypes.c_int64,) * 3)


@dataclass(frozen=True)
class CpuKernel:
    """A loaded kernel; see `batchchol.backends.base.Kernel`."""

    spec: KernelSpec
    stats: CompileStats
    function: Callable[..., int]

    def __call__(self, a: Batch, out: Batch, info: NDArray[np.int32], threads: int) -> None:
        lanes = self.spec.lanes
        if self.spec.layout == "canonical":
            extent, groups = a.batch, -(-a.batch // lanes)
        else:
            extent, groups = stride(a.batch, a.layout), padded(a.batch, a.layout) // lanes
        source, result, status = a.data.ctypes.data, out.data.ctypes.data, info.ctypes.data

        def work(first: int, last: int) -> int:
            return self.function(source, result, status, extent, first, last)

        if over_ranges(work, groups, threads, a.nbytes):
            needed = self.spec.problem.n**2 * lanes * a.dtype.itemsize * threads
            raise OutOfMemory("the working chunks of a factorization", needed, memory.free_bytes())


class CpuBackend:
    """The host's cores; see `batchchol.backends.base.Backend`.

    Raises
    ------
    BackendUnavailable
        If there is no C compiler.
    """

    name = "cpu"

    def __init__(self) -> None:
        try:
            self._compiler = find_compiler()
        except BatchcholError as error:
            raise BackendUnavailable(f"backend 'cpu' cannot be used: {error}") from error
        self.targets = supported_targets()
        self.target = self.targets[0]
        self.kernel = lru_cache(maxsize=None)(self._load)

    @property
    def threads(self) -> int:
        return available_threads()

    def lanes(self, dtype: str) -> int:
        return TARGETS[self.target].lanes(dtype)

    def free_bytes(self) -> int:
        return memory.free_bytes()

    def device(self) -> dict[str, str | int]:
        return {
            "backend": self.name,
            "cpu": cpu_model(),
            "simd": self.target,
            "simd_bits": 8 * TARGETS[self.target].vector_bytes,
            "cores": available_threads(),
            "memory_bytes": memory.total_bytes(),
            "last_level_cache_bytes": last_level_cache_bytes(),
            "compiler": self._compiler.identity,
        }

    def unsupported(self, spec: KernelSpec, layout: Layout | None = None) -> str | None:
        if spec.target not in supported_targets():
            return f"target={spec.target!r} is not among this CPU's: {', '.join(supported_targets())}"
        if layout is not None and layout.chunk is not None and layout.chunk % spec.lanes:
            return f"chunk={layout.chunk} is not a multiple of the {spec.lanes} lanes of {spec.target}"
        return None

    def _load(self, spec: KernelSpec) -> Kernel:
        source = generate(spec)
        library = load(source, spec.target)
        return CpuKernel(spec, library.stats, library.function(source.entry, *_ARGUMENTS))

    def sample(self, kernel: Kernel, a: Batch, out: Batch, info: NDArray[np.int32], threads: int) -> float:
        start = time.perf_counter()
        kernel(a, out, info, threads)
        return time.perf_counter() - start


def survey() -> Availability:
    """Whether the cpu backend can be used, and what it found."""
    try:
        compiler = find_compiler()
    except BatchcholError as error:
        return Availability("cpu", False, "no C compiler", str(error))
    return Availability("cpu", True, f"{supported_targets()[0]}, {available_threads()} threads, {compiler.identity}")


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.split(":")[0].strip() == "model name":
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@lru_cache(maxsize=1)
def last_level_cache_bytes() -> int:
    """Bytes of the largest cache of the first core; 32 MiB where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1))
    return max(sizes, default=32 << 20)
