"""The embedded default: generated SIMD C on the host's cores."""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
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
from batchchol.backends.base import Availability, Kernel, check_protocol, memory_of, rotation
from batchchol.backends.rapl import Rapl
from batchchol.batches import host_memory
from batchchol.batches.batch import Batch, default_layout, info_array
from batchchol.batches.checks import check_math
from batchchol.batches.host_memory import address_of
from batchchol.batches.layouts import padded, stride
from batchchol.batches.rectangular import RectangularBatch
from batchchol.datasets import generation
from batchchol.errors import BatchcholError, CompileError, CompilerNotFound, CpuUnavailable, OutOfMemory
from batchchol.files import system_values
from batchchol.operations import residual
from batchchol.operations.roofline import Ceilings, measured_ceilings
from batchchol.parallel import SHARE_BYTES, available_threads, over_ranges
from batchchol.progress import Show
from kernelgen import SIMD_TARGETS, KernelSpec, Layout, generate
from kernelgen.operations import Operation
from kernelgen.targets import ELEMENT_BYTES

# Of matrices and factors together; fewer are still in the second-level cache when they are read.
STREAM_BYTES = 1 << 23


def signature(operation: Operation) -> tuple[type[Any], ...]:
    """The argument types of an operation's kernels: its arrays, then integers."""
    integers = operation.has_columns + (1 if operation.whole_groups else 2) + 2
    return (*(ctypes.c_void_p,) * len(operation.arguments), *(ctypes.c_int64,) * integers)


@dataclass(frozen=True)
class CpuKernel:
    """A loaded kernel; see `batchchol.backends.base.Kernel`."""

    spec: KernelSpec
    stats: CompileStats
    function: Callable[..., int]
    # Writes past the caches.
    streaming: Callable[..., int] | None = None

    def __call__(self, *arrays: Any, threads: int, stream: object | None = None) -> None:
        if stream is not None:
            raise ValueError(f"stream: got {stream!r}, expected None: backend 'cpu' has none")
        operation, first = self._operation, arrays[0]
        memory = memory_of(operation, arrays)
        numbers, matrices = self._extents(first.batch, first.layout)
        if operation.columns is not None:
            numbers = (memory[operation.columns].shape[-1], *numbers)
        work = partial(self.function, *[address_of(array) for array in memory], *numbers)
        moved = sum([memory[place].nbytes for place in operation.read])
        self._check(over_ranges(work, -(-matrices // self._lanes), threads, moved, arrays=memory), threads)

    def factor_arrays(
        self, source: int, target: int, batch: int, arrays: tuple[object, ...], *, used: bool
    ) -> NDArray[np.int32]:
        """Factor canonical matrices from one address to another, on as many threads as their bytes are worth.

        `arrays` own the memory; `used` says that the target has its pages already: what is written past the caches
        to new ones takes longer. Returns the info of each.
        """
        groups, moved = -(-batch // self._lanes), batch * self._bytes
        info, threads = np.empty(groups * self._lanes, np.int32), available_threads(moved)
        function = self.function
        if used and self.streaming and source != target and moved >= STREAM_BYTES:
            function = self.streaming
        if moved < SHARE_BYTES:
            self._check(function(source, target, address_of(info), batch, 0, groups), 1)
        else:
            work = partial(function, source, target, address_of(info), batch)
            self._check(over_ranges(work, groups, threads, moved, arrays=(*arrays, info)), threads)
        return info[:batch]

    @cached_property
    def _bytes(self) -> int:
        """What is read and written of a canonical matrix."""
        return 2 * self.spec.problem.n**2 * ELEMENT_BYTES[self.spec.problem.dtype]

    def _check(self, failed: int, threads: int) -> None:
        """Raise if a kernel had no memory to work in."""
        if failed:
            work = f"the working chunks of {self._operation.work}"
            raise OutOfMemory(work, self._room * threads, host_memory.free_bytes())

    @cached_property
    def _operation(self) -> Operation:
        return self.spec.problem.operation

    @cached_property
    def _lanes(self) -> int:
        return self.spec.lanes

    def _extents(self, batch: int, layout: Layout) -> tuple[tuple[int, ...], int]:
        """The integer arguments: where the matrices are, and how many of them the kernel works on."""
        apart = stride(batch, layout)
        if not self._operation.whole_groups:
            return (apart, batch), batch
        return ((batch,), batch) if layout.kind == "canonical" else ((apart,), padded(batch, layout))

    @property
    def _room(self) -> int:
        """Bytes of a thread's working memory: a group of matrices, and panels of right-hand sides."""
        problem, lanes = self.spec.problem, self.spec.lanes
        panels = 2 * lanes if problem.operation.has_columns else 0
        return (problem.n + panels) * problem.n * lanes * ELEMENT_BYTES[problem.dtype]


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
    empty, from_dense = staticmethod(Batch.empty), staticmethod(Batch.from_dense)
    from_rectangles = staticmethod(RectangularBatch.from_dense)

    def __init__(self) -> None:
        try:
            self._compiler = find_compiler()
        except CompilerNotFound as error:
            raise CpuUnavailable(f"backend 'cpu' cannot be used: {error}") from error
        self.targets = supported_targets()
        self.target = self.targets[0]
        self._rapl = Rapl()
        self.kernel = lru_cache(maxsize=None)(self._load)

    @property
    def model(self) -> str:
        return cpu_model()

    @property
    def threads(self) -> int:
        return available_threads()

    def lanes(self, dtype: str) -> int:
        return SIMD_TARGETS[self.target].lanes(dtype)

    def default_layout(
        self,
        n: int,
        dtype: DTypeLike = "float32",
        batch: int | None = None,
        math: str | None = None,
        op: str = "potrf",
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

    def joules(self) -> float | None:
        return self._rapl.joules()

    def fill(self, batch: Batch, recipe: str, *, start: int = 0, seed: int = 0, **parameters: object) -> None:
        generation.fill(batch, recipe, start=start, seed=seed, threads=None, **parameters)

    def info(self, batch: Batch, spec: KernelSpec, *, poisoned: bool = True) -> NDArray[np.int32]:
        return info_array(batch, spec.lanes, poisoned=poisoned)

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
        source = generate(spec)
        library = load(source, spec.target)
        types = signature(spec.problem.operation)
        streaming = source.streaming and library.function(source.streaming, *types)
        return CpuKernel(spec, library.stats, library.function(source.entry, *types), streaming or None)

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
            # From the cache now, and kept.
            self.kernel(spec)
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

    def in_turn(self, bursts: Sequence[Sequence[Callable[[], None]]], *, alone: bool = False) -> list[float]:
        clock = time.thread_time if alone else time.perf_counter
        return [_timed(partial(_called, burst), clock) / len(burst) for burst in bursts]

    def ceilings(self, dtype: str = "float32", threads: int | None = None) -> Ceilings:
        return measured_ceilings(threads, dtype)

    def floor(self, protocol: str | None = None, samples: int = 20) -> float:
        check_protocol(self, protocol)
        return 0.0


def _timed(call: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    call()
    return clock() - start


def _called(burst: Sequence[Callable[[], None]]) -> None:
    for call in burst:
        call()


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
