"""An NVIDIA GPU, through PyCUDA. Importing this imports no PyCUDA, and making the backend initialises CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.artifacts.builds import Outcome
from batchchol.artifacts.c_library import supported_targets
from batchchol.artifacts.compilers import TIME_LIMIT
from batchchol.artifacts.cuda_modules import build_all
from batchchol.artifacts.nvcc import find_nvcc
from batchchol.backends.base import Availability, Kernel, check_calls, check_protocol, check_runnable
from batchchol.backends.cpu import cpu_model
from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.batches import filling
from batchchol.backends.cuda.batches.batch import DeviceBatch, default_layout
from batchchol.backends.cuda.batches.rectangular import DeviceRectangularBatch
from batchchol.backends.cuda.device import device
from batchchol.backends.cuda.kernels import CudaKernel, PycudaFunction
from batchchol.backends.cuda.measuring import ceilings, nvml
from batchchol.backends.cuda.measuring.clock import Clock
from batchchol.batches.batch import Batch, dtype_name
from batchchol.batches.host_memory import total_bytes
from batchchol.datasets import files, generation
from batchchol.defaults.lookup import array_layout
from batchchol.errors import BackendUnavailable, BatchcholError
from batchchol.operations import residual
from batchchol.operations.roofline import Ceilings
from batchchol.parallel import available_threads
from batchchol.progress import Show
from kernelgen import CUDA, KernelSource, KernelSpec, Launch, Layout, generate
from kernelgen.gpu import WARP

# Three addresses and two integers, for PyCUDA.
_FORMATS = "PPPqq"


class CudaBackend:
    """A GPU; see `batchchol.backends.base.Backend`.

    Raises
    ------
    BackendUnavailable
        If there is no PyCUDA, no driver or no GPU.
    """

    name = "cuda"
    protocols = ("queued", "single")
    targets = (CUDA.name,)
    target = CUDA.name
    # Of the host: one, which launches.
    threads = 1
    empty, from_dense = staticmethod(DeviceBatch.empty), staticmethod(DeviceBatch.from_dense)
    from_rectangles = staticmethod(DeviceRectangularBatch.from_dense)
    default_layout, host = staticmethod(default_layout), staticmethod(memory.to_host)

    def __init__(self) -> None:
        try:
            self._gpu = device()
        except BackendUnavailable as error:
            raise BackendUnavailable(f"backend 'cuda' cannot be used: {error}") from error
        self.architecture, self.model = self._gpu.architecture, self._gpu.model
        self._clock = Clock(self._gpu)
        self.kernel = lru_cache(maxsize=None)(self._load)
        self._floors: dict[str, float] = {}
        self._ceilings: dict[str, Ceilings] = {}

    def lanes(self, dtype: str) -> int:
        # A warp reads a chunk's elements as one line.
        return WARP

    def array_layout(self, n: int, batch: int, dtype: DTypeLike = "float32", math: str = "ieee") -> Layout:
        where = {"target": self.target, "arch": self.architecture, "device": self.model}
        return array_layout(n, batch, dtype=dtype_name(np.dtype(dtype)), math=math, **where)

    def last_level_cache_bytes(self) -> int:
        return self._attribute("L2_CACHE_SIZE")

    def free_bytes(self) -> int:
        return memory.free_bytes()

    def device(self) -> dict[str, str | int]:
        gpu = self._gpu.handle
        major, minor = gpu.compute_capability()
        return {
            "backend": self.name,
            "cpu": cpu_model(),
            "simd": supported_targets()[0],
            "cores": available_threads(),
            "memory_bytes": total_bytes(),
            "gpu": gpu.name(),
            "compute_capability": f"{major}.{minor}",
            "architecture": self._gpu.architecture,
            "multiprocessors": self._gpu.multiprocessors,
            "gpu_memory_bytes": int(gpu.total_memory()),
            "l2_bytes": self._attribute("L2_CACHE_SIZE"),
            "last_level_cache_bytes": self._attribute("L2_CACHE_SIZE"),
            "gpu_clock_mhz": self._attribute("CLOCK_RATE") // 1000,
            "memory_clock_mhz": self._attribute("MEMORY_CLOCK_RATE") // 1000,
            "driver": driver_version(self._gpu.pycuda.get_driver_version()),
            "toolkit": _toolkit(),
            "compiler": _toolkit(),
        }

    def conditions(self) -> dict[str, str | int | float]:
        return nvml.read(self._gpu.handle.pci_bus_id())

    def joules(self) -> float | None:
        return nvml.joules(self._gpu.handle.pci_bus_id())

    def fill(self, batch: Batch, recipe: str, *, start: int = 0, seed: int = 0, **parameters: object) -> None:
        self._check_device(batch=batch)
        n, dtype = batch.n, batch.dtype_name
        if filling.can_fill(recipe, n, dtype, parameters):
            filling.fill(
                self._gpu,
                batch.address,
                n,
                batch.batch,
                batch.layout,
                dtype,
                recipe,
                start=start,
                seed=seed,
                stream=None,
                **parameters,
            )
            return
        slices = generation.stream(
            recipe,
            n=n,
            start=start,
            stop=start + batch.batch,
            seed=seed,
            dtype=dtype,
            threads=None,
            slice_bytes=files.SLICE_BYTES,
            **parameters,
        )
        for first, dense in slices:
            batch.put(first - start, dense)

    def info(self, batch: Batch, spec: KernelSpec, *, poisoned: bool = True) -> Any:
        return memory.info_array(batch.batch, poisoned=poisoned)

    def place(self, array: NDArray[Any]) -> Any:
        return memory.to_device(array, f"an array of shape {array.shape}")

    def check(self, a: Batch, l: Batch, info: Any, math: str) -> float:
        self._check_device(a=a, l=l)
        if (l.n, l.batch, l.layout, l.dtype) != (a.n, a.batch, a.layout, a.dtype):
            raise ValueError(f"l: got {l.contents}; expected {a.contents}, as a is")
        ratios = memory.empty((a.batch,), np.float64, f"the residual ratios of {a.batch:,} matrices")
        support.residual_ratios(
            self._gpu,
            a.address,
            l.address,
            int(ratios.gpudata or 0),
            a.n,
            a.batch,
            a.layout,
            a.dtype_name,
            uplo=l.triangle or "lower",
        )
        return residual.judge(memory.to_host(info)[: a.batch], memory.to_host(ratios), range(a.batch), math)

    def unsupported(self, spec: KernelSpec, layout: Layout | None = None) -> str | None:
        if spec.target != self.target:
            return f"target={spec.target!r} is not a GPU's: use {self.target!r}"
        fixed = spec.schedule.stride
        if fixed is not None and layout is not None and layout.chunk not in (None, fixed):
            return f"chunk={layout.chunk} is not the stride of {fixed} that its code has"
        return None

    def _load(self, spec: KernelSpec) -> Kernel:
        return CudaKernel(spec, self._gpu, self._gpu.load(generate(spec)))

    def pycuda_function(self, spec: KernelSpec, batch: Batch) -> PycudaFunction:
        """The kernel of a spec as a `pycuda.driver.Function`, with what a launch for a batch takes.

        Any batch of this size and layout may be factored by it, on the default stream or one of PyCUDA's. It is
        loaded for as long as the process lives, and for this caller alone: it may be prepared and configured anew.

        Raises
        ------
        TypeError, ValueError
            If the spec is not one for this batch, or the batch does not live on this GPU.
        CompilerNotFound, CompileError, CacheError
            If the kernel is not in the cache, and cannot be built or kept.
        """
        check_runnable(self, spec, batch)
        kernel = cast(CudaKernel, self.kernel(spec))
        launch, geometry = kernel.function.launch, kernel.geometry(batch.batch, batch.layout)
        function = self._gpu.loader.own(kernel.function, _FORMATS)
        blocks = launch.grid(batch.batch, self._gpu.multiprocessors)
        return PycudaFunction(function, (blocks, 1), (launch.threads, 1, 1), launch.shared_bytes, *geometry)

    def kernel_of(self, spec: KernelSpec, source: KernelSource, launch: Launch) -> CudaKernel:
        """The kernel of a spec from a source that others share, launched in its own way.

        What the hardware's split of on-chip memory favours, and how much of it a launch may have, is what was asked
        for last.
        """
        function = replace(self._gpu.load(source), launch=launch)
        self._gpu.loader.configure(function)
        return CudaKernel(spec, self._gpu, function)

    def occupancy(self, kernel: CudaKernel) -> float:
        """Occupancy: the threads of a kernel that a multiprocessor holds at once, over the most that it can hold."""
        resident = self._gpu.resident_blocks(kernel.function) * kernel.function.launch.threads
        return resident / self._attribute("MAX_THREADS_PER_MULTIPROCESSOR")

    def build(
        self,
        specs: Sequence[KernelSpec],
        *,
        jobs: int | None = None,
        time_limit: float = TIME_LIMIT,
        progress: Show = lambda _: None,
    ) -> list[Outcome]:
        sources = [generate(spec) for spec in specs]
        return build_all(sources, self.architecture, jobs=jobs, time_limit=time_limit, progress=progress)

    def seconds(
        self, calls: Sequence[Callable[[], None]], *, samples: int, protocol: str | None = None, warm_up: int = 3
    ) -> list[float]:
        chosen = check_protocol(self, protocol)
        check_calls(calls, samples)
        return self._clock.seconds(calls, samples, chosen, warm_up)

    def series(
        self, calls: Sequence[Callable[[], None]], *, samples: int, warm_up: int, burst_seconds: float
    ) -> tuple[list[float], int]:
        check_calls(calls, samples)
        return self._clock.series(calls, samples, warm_up, burst_seconds)

    def in_turn(self, bursts: Sequence[Sequence[Callable[[], None]]], *, alone: bool = False) -> list[float]:
        return self._clock.in_turn(bursts)

    def host_seconds(self, call: Callable[[], None], *, samples: int = 20) -> list[float]:
        """Seconds that the host takes to queue a call, in each sample: where it is longer, that is its cost."""
        check_calls([call], samples)
        return self._clock.host_seconds(call, samples)

    def ceilings(self, dtype: str = "float32", threads: int | None = None) -> Ceilings:
        if dtype not in self._ceilings:
            self._ceilings[dtype] = Ceilings(
                ceilings.copy_bytes_per_second(self._gpu, self._clock),
                ceilings.peak_flops_per_second(self._gpu, self._clock, dtype),
                threads or self.threads,
                dtype,
                self.target,
            )
        return self._ceilings[dtype]

    def floor(self, protocol: str | None = None, samples: int = 20) -> float:
        chosen = check_protocol(self, protocol)
        if chosen not in self._floors:
            nothing = [lambda: support.empty(self._gpu)]
            taken = self.seconds(nothing, samples=samples, protocol=chosen)
            self._floors[chosen] = float(np.median(taken))
        return self._floors[chosen]

    def _check_device(self, **batches: Batch) -> None:
        """Refuse batches of the host, whose addresses a kernel could not tell from the device's."""
        for argument, batch in batches.items():
            if batch.backend != self.name:
                raise ValueError(
                    f"{argument}: lives on backend {batch.backend!r}, expected {self.name!r}: make it there"
                )

    def _attribute(self, name: str) -> int:
        return int(self._gpu.handle.get_attribute(getattr(self._gpu.pycuda.device_attribute, name)))


def survey() -> Availability:
    """Whether the cuda backend can be used, and what it found; initialises CUDA."""
    try:
        gpu = device()
    except BackendUnavailable as error:
        return Availability("cuda", False, "no GPU that can be used", str(error))
    detail = f"{gpu.handle.name()}, {gpu.architecture}"
    try:
        return Availability("cuda", True, f"{detail}, {find_nvcc().identity}")
    except BatchcholError as error:
        return Availability("cuda", True, f"{detail}, kernels from the cache alone", str(error))


def prove() -> None:
    """Run a kernel that does nothing on the GPU, compiled or from the cache.

    Raises
    ------
    BatchcholError
        Why it cannot.
    """
    support.empty(device())
    device().synchronize()


def driver_version(cuda_version: int) -> str:
    """The version of the driver, such as "580.159.04"; where the system does not say, the CUDA version it is for."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split("\n", 1)[0].split()
        return next(word for word in words if word[0].isdigit() and "." in word)
    except (OSError, StopIteration):
        return f"CUDA {cuda_version // 1000}.{cuda_version % 1000 // 10}"


def _toolkit() -> str:
    try:
        return f"CUDA {find_nvcc().version}"
    except BatchcholError:
        return "none: kernels from the cache alone"
