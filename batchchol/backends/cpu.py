"""The embedded default: generated SIMD C on the host's cores."""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from batchchol.artifacts.builds import Build, Group, Outcome
from batchchol.artifacts.c_compiler import find_compiler
from batchchol.artifacts.c_library import load, supported_targets
from batchchol.artifacts.compilers import TIME_LIMIT, Running
from batchchol.artifacts.stats import CompileStats
from batchchol.backends.base import Availability, Kernel, Solver, check_operation, check_protocol, rotation
from batchchol.batches import host_memory
from batchchol.batches.batch import Batch, default_layout, info_array
from batchchol.batches.checks import check_math
from batchchol.batches.layouts import padded, stride
from batchchol.datasets import generation
from batchchol.errors import BatchcholError, CompileError, CompilerNotFound, CpuUnavailable, OutOfMemory
from batchchol.files import system_values
from batchchol.operations import residual
from batchchol.operations.roofline import Ceilings, measured_ceilings
from batchchol.parallel import available_threads, over_ranges
from batchchol.progress import Show
from kernelgen import SIMD_TARGETS, KernelSpec, Layout, generate
from kernelgen.operations import OPERATIONS


def _signature(spec: KernelSpec) -> tuple[type[Any], ...]:
    """The argument types of a kernel: arrays; nrhs and the batch, where there are right-hand sides; and integers."""
    operation = OPERATIONS[spec.problem.op]
    integers = 5 if operation.has_columns else 3
    return (*(ctypes.c_void_p,) * len(operation.arguments), *(ctypes.c_int64,) * integers)


@dataclass(frozen=True)
class CpuKernel:
    """A loaded kernel; see `batchchol.backends.base.Kernel`."""

    spec: KernelSpec
    stats: CompileStats
    function: Callable[..., int]

    def __call__(
        self, a: Batch, out: Batch, info: NDArray[np.int32], threads: int, stream: object | None = None
    ) -> None:
        if stream is not None:
            raise ValueError(f"stream: got {stream!r}, expected None: backend 'cpu' has none")
        lanes = self.spec.lanes
        if self.spec.layout == "canonical":
            extent, groups = a.batch, -(-a.batch // lanes)
        else:
            extent, groups = stride(a.batch, a.layout), padded(a.batch, a.layout) // lanes
        source, result, status = a.data.ctypes.data, out.data.ctypes.data, info.ctypes.data

        def work(first: int, last: int) -> int:
            return self.function(source, result, status, extent, first, last)

        if over_ranges(work, groups, threads, a.nbytes, arrays=(a.data, out.data, info)):
            needed = self.spec.problem.n**2 * lanes * a.dtype.itemsize * threads
            raise OutOfMemory("the working chunks of a factorization", needed, host_memory.free_bytes())


@dataclass(frozen=True)
class CpuSolver:
    """A loaded kernel; see `batchchol.backends.base.Solver`."""

    spec: KernelSpec
    stats: CompileStats
    function: Callable[..., int]

    def __call__(
        self,
        l: Batch,
        b: NDArray[np.floating],
        x: NDArray[np.floating],
        threads: int,
        stream: object | None = None,
    ) -> None:
        if stream is not None:
            raise ValueError(f"stream: got {stream!r}, expected None: backend 'cpu' has none")
        nrhs, lanes, apart = b.shape[-1], self.spec.lanes, stride(l.batch, l.layout)
        factors, given, solution = l.data.ctypes.data, b.ctypes.data, x.ctypes.data

        def work(first: int, last: int) -> int:
            return self.function(factors, given, solution, nrhs, apart, l.batch, first, last)

        moved = l.nbytes + b.nbytes + x.nbytes
        if over_ranges(work, -(-l.batch // lanes), threads, moved, arrays=(l.data, b, x)):
            needed = (l.n + 2 * lanes) * l.n * lanes * l.dtype.itemsize * threads
            raise OutOfMemory("the working chunks of a solve", needed, host_memory.free_bytes())


class CpuBackend:
    """The host's cores; see `batchchol.backends.base.Backend`.

    Raises
    ------
    CpuUnavailable
        If there is no C compiler. Only `cholesky`, `cholesky_ex` and `factor` do without one.
    """

    name = "cpu"
    protocols = ("single",)
    architecture = None

    def __init__(self) -> None:
        try:
            self._compiler = find_compiler()
        except CompilerNotFound as error:
            raise CpuUnavailable(f"backend 'cpu' cannot be used: {error}") from error
        self.targets = supported_targets()
        self.target = self.targets[0]
        self.kernel = lru_cache(maxsize=None)(self._load)
        self.solver = lru_cache(maxsize=None)(self._load_solver)

    @property
    def model(self) -> str:
        return cpu_model()

    @property
    def threads(self) -> int:
        return available_threads()

    def lanes(self, dtype: str) -> int:
        return SIMD_TARGETS[self.target].lanes(dtype)

    def default_layout(
        self, n: int, dtype: DTypeLike = "float32", batch: int | None = None, math: str | None = None
    ) -> Layout:
        check_math(math)
        return default_layout(dtype)

    def array_layout(self, n: int, batch: int, dtype: DTypeLike = "float32", math: str = "ieee") -> Layout:
        check_math(math)
        return Layout.canonical()

    def last_level_cache_bytes(self) -> int:
        return host_memory.last_level_cache_bytes()

    def free_bytes(self) -> int:
        return host_memory.free_bytes()

    def conditions(self) -> dict[str, str | int | float]:
        return {}

    def empty(self, n: int, batch: int, layout: Layout | None = None, dtype: DTypeLike = "float32") -> Batch:
        return Batch.empty(n, batch, layout, dtype)

    def from_dense(self, a: NDArray[np.floating], layout: Layout | None = None) -> Batch:
        return Batch.from_dense(a, layout)

    def fill(self, batch: Batch, recipe: str, *, start: int = 0, seed: int = 0, **parameters: object) -> None:
        generation.fill(batch, recipe, start=start, seed=seed, threads=None, **parameters)

    def info(self, batch: Batch, spec: KernelSpec, *, poisoned: bool = True) -> NDArray[np.int32]:
        return info_array(batch, spec.lanes)

    def place(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.copy()

    def host(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def check(self, a: Batch, l: Batch, info: NDArray[np.int32], math: str) -> float:
        return residual.check(a, l, info, math)

    def device(self) -> dict[str, str | int]:
        return {
            "backend": self.name,
            "cpu": cpu_model(),
            "simd": self.target,
            "simd_bits": 8 * SIMD_TARGETS[self.target].vector_bytes,
            "cores": available_threads(),
            "memory_bytes": host_memory.total_bytes(),
            "last_level_cache_bytes": host_memory.last_level_cache_bytes(),
            "compiler": self._compiler.identity,
        }

    def unsupported(self, spec: KernelSpec, layout: Layout | None = None) -> str | None:
        if spec.target not in supported_targets():
            return f"target={spec.target!r} is not among this CPU's: {', '.join(supported_targets())}"
        if layout is not None and layout.chunk is not None and layout.chunk % spec.lanes:
            return f"chunk={layout.chunk} is not a multiple of the {spec.lanes} lanes of {spec.target}"
        return None

    def _load(self, spec: KernelSpec) -> Kernel:
        check_operation(spec, "potrf")
        return CpuKernel(spec, *_loaded(spec))

    def _load_solver(self, spec: KernelSpec) -> Solver:
        check_operation(spec, "potrs")
        return CpuSolver(spec, *_loaded(spec))

    def build(
        self,
        specs: Sequence[KernelSpec],
        *,
        jobs: int | None = None,
        time_limit: float = TIME_LIMIT,
        progress: Show = lambda _: None,
    ) -> list[Outcome]:
        running, groups = Running(), [(spec,) for spec in dict.fromkeys(specs)]
        build = Build(len(groups), progress)
        attempt = partial(self._attempt, time_limit, running)
        build.run(groups, attempt, jobs=jobs or available_threads(), stop=running.stop)
        return [build.outcomes[spec] for spec in specs]

    def _attempt(self, time_limit: float, running: Running, group: Group) -> list[Outcome]:
        (spec,) = group
        try:
            load(generate(spec), spec.target, time_limit=time_limit, running=running)
            # Out of the cache now, and kept.
            (self.solver if OPERATIONS[spec.problem.op].has_columns else self.kernel)(spec)
        except CompileError as error:
            return [Outcome(spec.name, error.status, str(error))]
        return [Outcome(spec.name, "built")]

    def seconds(
        self, calls: Sequence[Callable[[], None]], *, samples: int, protocol: str | None = None, warm_up: int = 3
    ) -> list[float]:
        check_protocol(self, protocol)
        turns = rotation(calls, samples, warm_up)
        for call in islice(turns, warm_up):
            call()
        return [_timed(call) for call in turns]

    def series(
        self, calls: Sequence[Callable[[], None]], *, samples: int, warm_up: int, burst_seconds: float
    ) -> tuple[list[float], int]:
        return self.seconds(calls, samples=samples, warm_up=warm_up), 1

    def ceilings(self, dtype: str = "float32", threads: int | None = None) -> Ceilings:
        return measured_ceilings(threads, dtype)

    def floor(self, protocol: str | None = None, samples: int = 20) -> float:
        check_protocol(self, protocol)
        return 0.0


def _loaded(spec: KernelSpec) -> tuple[CompileStats, Callable[..., int]]:
    source = generate(spec)
    library = load(source, spec.target)
    return library.stats, library.function(source.entry, *_signature(spec))


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def survey() -> Availability:
    """Whether the cpu backend can be used, and what it found."""
    try:
        compiler = find_compiler()
    except BatchcholError as error:
        hint = f"{error}. Until then LAPACK factors on the CPU, many times slower where matrices are small"
        return Availability("cpu", False, "no C compiler", hint)
    return Availability("cpu", True, f"{supported_targets()[0]}, {available_threads()} threads, {compiler.identity}")


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The processor's name."""
    return system_values(Path("/proc/cpuinfo")).get("model name") or platform.processor() or platform.machine()
