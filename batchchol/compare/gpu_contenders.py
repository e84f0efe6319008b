"""Everyone who is timed side by side on a GPU: the same matrices in its memory, the same clock, the same check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from batchchol import __version__
from batchchol.api import cholesky_ex
from batchchol.backends import Backend
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.batch import DeviceBatch
from batchchol.backends.cuda.clock import MOST_CALLS
from batchchol.batches.batch import Batch
from batchchol.defaults.lookup import default_spec
from batchchol.errors import ResidualError
from batchchol.measure.stopwatch import FOREIGN_CALLS
from batchchol.measure.timing import CACHES, rotating_buffers
from kernelgen import KernelSpec, Layout

# How a contender was timed: in the table, and beside every number.
QUEUED = "queued: bursts between two events on the default stream, behind a gate where launching takes longer"
WAITING = "single: events on the default stream around a call that waits for its own stream"
BOTH, SINGLE = ("queued", "single"), ("single",)

VERSION = f"batchchol {__version__}"

Call = Callable[[], None]


@dataclass(frozen=True)
class Result:
    """A finished factorization: the matrices, their factors, and the info of each on the device.

    `info` is None of a library that has none: its factors are then not finite where it failed.
    """

    a: Batch
    l: Batch
    info: Any = None


@dataclass(frozen=True)
class DeviceContender:
    """Someone who factors the matrices of an `Arena`.

    Attributes
    ----------
    name, version : str
        Who, and which.
    spec : str
        The kernel, or the function that is called.
    layout : Layout
        Where the matrices lie: it decides the compulsory bytes.
    math : str
        The accuracy class whose bound its results are held to.
    calls : sequence of callables
        Each factors one set of buffers; together they exceed the last-level cache by far.
    result : callable
        What call i made.
    restore : callable, optional
        Makes all buffers inputs again, for those who overwrite theirs.
    protocols : tuple of str
        How it can be timed.
    most : int, optional
        Calls of a burst at most.
    """

    name: str
    version: str
    spec: str
    layout: Layout
    math: str
    calls: Sequence[Call]
    result: Callable[[int], Result]
    restore: Call | None = None
    protocols: tuple[str, ...] = BOTH
    most: int = FOREIGN_CALLS

    @property
    def timing(self) -> str:
        """How it is timed."""
        return QUEUED if "queued" in self.protocols else WAITING


class Arena:
    """SPD matrices on the GPU, (batch, n, n), as many sets of them as it takes, and as much room for factors.

    A set is `batch` matrices; all sets together, alone, exceed four times the last-level cache if `cold`. Whoever
    factors set after set finds nothing in the cache. Addresses are of the device; all memory is freed with the arena.

    Raises
    ------
    OutOfMemory
        If it would not fit.
    """

    def __init__(
        self, backend: Backend, recipe: str, n: int, batch: int, dtype: str, math: str, *, cold: bool = True
    ) -> None:
        self.backend, self.n, self.batch, self.dtype, self.math = backend, n, batch, dtype, math
        self.cold = cold
        self._matrix_bytes = n * n * np.dtype(dtype).itemsize
        self.sets = -(-CACHES * backend.last_level_cache_bytes() // (batch * self._matrix_bytes)) if cold else 1
        canonical = Layout.canonical("row")
        self._inputs = backend.empty(n, self.sets * batch, canonical, dtype)
        backend.fill(self._inputs, recipe)
        self._room: Any = None

    @property
    def room(self) -> Any:
        """Room for the factors of all sets, made at its first use: a GPUArray (sets × batch, n, n)."""
        if self._room is None:
            self._room = self._inputs.copy().data
        return self._room

    def restore(self) -> None:
        """Queue the copying of all matrices into the room for factors, for those who overwrite their input."""
        memory.copy_on_device(self._inputs.data, self.room)

    def input(self, index: int) -> Any:
        """Set `index` as a GPUArray (batch, n, n), not to be written to."""
        return self._view(self._inputs.data, index)

    def output(self, index: int) -> Any:
        """The room for the factors of set `index`, a GPUArray (batch, n, n)."""
        return self._view(self.room, index)

    def result(self, index: int, l: Any = None, info: Any = None, order: str = "row") -> Result:
        """The result of set `index`: lower factors of an order in `l`, by default in the room for them."""
        layout = Layout.canonical(order)
        factors = self.output(index) if l is None else l
        # The matrices are symmetric: rows are columns.
        a = DeviceBatch(self.input(index), self.n, self.batch, layout)
        return Result(a, DeviceBatch(factors, self.n, self.batch, layout, "lower"), info)

    def info(self) -> Any:
        """Room for the info of one set: -1 until somebody has written it."""
        return memory.info_array(self.batch)

    def pointers(self) -> Any:
        """The addresses of all matrices in the room for factors, an array of uint64 on the device."""
        first = int(self.room.gpudata)
        addresses = first + self._matrix_bytes * np.arange(self.sets * self.batch, dtype=np.uint64)
        return memory.to_device(addresses, "the addresses of the matrices")

    def packed(self, layout: Layout) -> Sequence[tuple[Batch, Batch]]:
        """The first set in another layout: pairs of input and output, cold or hot as the arena is."""
        batch = self.backend.from_dense(self.input(0), layout)
        return rotating_buffers(self.backend, batch) if self.cold else [(batch, batch.copy())]

    def _view(self, data: Any, index: int) -> Any:
        from pycuda.gpuarray import GPUArray

        offset = index * self.batch * self._matrix_bytes
        return GPUArray((self.batch, self.n, self.n), self.dtype, base=data, gpudata=int(data.gpudata) + offset)


def verify(arena: Arena, contender: DeviceContender, call: int) -> float:
    """The largest residual ratio of all matrices of a call that was made.

    Raises
    ------
    ResidualError
        If the result is wrong, naming whose it is: no number of this contender may be kept.
    """
    result = contender.result(call)
    info = memory.to_device(np.zeros(arena.batch, np.int32), "the info") if result.info is None else result.info
    try:
        return arena.backend.check(result.a, result.l, info, contender.math)
    except ResidualError as error:
        raise ResidualError(f"{contender.name} ({contender.spec}, {contender.version}): {error}") from error


def kernel(arena: Arena, name: str, spec: KernelSpec, layout: Layout) -> DeviceContender:
    """One of the library's kernels on a batch of a packed layout, out of place."""
    run, info, pairs = arena.backend.kernel(spec), memory.info_array(arena.batch), arena.packed(layout)
    calls = [partial(run, a, out, info, 1) for a, out in pairs]

    def result(index: int) -> Result:
        a, out = pairs[index]
        return Result(a, out.marked(spec.problem.uplo), info)

    return _own(name, spec, layout, calls, result)


def canonical_kernel(arena: Arena, name: str, spec: KernelSpec) -> DeviceContender:
    """One of the library's kernels on canonical arrays, out of place or in place, as the spec says."""
    run, info, layout = arena.backend.kernel(spec), arena.info(), Layout.canonical(spec.order)
    results = [arena.result(index, info=info, order=spec.order) for index in range(arena.sets)]
    calls = [partial(run, each.l if spec.in_place else each.a, each.l, info, 1) for each in results]
    contender = _own(name, spec, layout, calls, results.__getitem__)
    return replace(contender, restore=arena.restore) if spec.in_place else contender


def array_spec(backend: Backend, n: int, batch: int, dtype: str) -> KernelSpec:
    """The kernel that the library chooses for arrays (batch, n, n) on the GPU."""
    layout = backend.array_layout(n, batch, dtype)
    return default_spec(
        n,
        target=backend.target,
        dtype=dtype,
        layout=layout.kind,
        chunk=layout.chunk,
        order=layout.order,
        in_place=layout.kind != "canonical",
        batch=batch,
        arch=backend.architecture,
        device=backend.model,
    )


def whole_call(arena: Arena, name: str, spec: KernelSpec) -> DeviceContender:
    """`batchchol.cholesky_ex`, from one GPU array (batch, n, n) to another; `spec` is what it chooses by itself."""
    last: list[Any] = [None]
    inputs = [arena.input(index) for index in range(arena.sets)]

    def call(index: int) -> None:
        last[0] = cholesky_ex(inputs[index])

    def result(index: int) -> Result:
        return arena.result(index, last[0].L, last[0].info)

    calls = [partial(call, index) for index in range(arena.sets)]
    return replace(_own(name, spec, Layout.canonical("row"), calls, result), most=FOREIGN_CALLS)


def _own(
    name: str, spec: KernelSpec, layout: Layout, calls: Sequence[Call], result: Callable[[int], Result]
) -> DeviceContender:
    math = spec.problem.math
    return DeviceContender(name, VERSION, spec.name, layout, math, calls, result, most=MOST_CALLS)
