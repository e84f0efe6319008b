"""Factors of whole arrays (batch, n, n) of the GPU, in slices.

They are factored where they lie, by a kernel for canonical arrays, or packed, factored and unpacked. A slice is as
many matrices as the free memory takes: all of them, if it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np

from batchchol.backends.base import Backend
from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.backend import CudaBackend
from batchchol.backends.cuda.device import Device, word_of
from batchchol.backends.cuda.kernels import CudaKernel
from batchchol.backends.cuda.launching.functions import Function
from batchchol.backends.cuda.launching.prepared import PreparedLaunch
from batchchol.batches.batch import check_dtype
from batchchol.batches.layouts import array_shape
from kernelgen import KernelSource, KernelSpec, Layout
from kernelgen.problem import MAX_CHUNK
from kernelgen.targets import ELEMENT_BYTES

# Free memory is fragmented, and others use the GPU too.
USABLE = 0.9
# For less, asking how much is free takes longer than the work (measured).
_SMALL_BYTES = 64 << 20
# Whole chunks, whatever their size.
STEP = MAX_CHUNK
# What C-contiguous arrays are without being packed. Kernels for it write the other triangle too, with zeros.
_AS_THEY_ARE = Layout.canonical("row")
_INFO = np.dtype(np.int32)
# Allocates a number of bytes for a stated purpose; the memory lives as long as the address that comes back.
Room = Callable[[int, str], int]


def view(a: Any) -> memory.View:
    """A device array of matrices, once its dtype is known to be right."""
    matrices = memory.view(a, "a")
    if check_dtype("a", matrices.dtype) != matrices.dtype:
        raise TypeError(f"a: got dtype {matrices.dtype}, expected native byte order")
    return matrices


def factor_device(
    backend: Backend, a: memory.View, spec: KernelSpec, layout: Layout, room: memory.View | None = None
) -> tuple[Any, Any]:
    """Factors and info of an array (..., n, n) of the GPU, as GPUArrays; all is queued on the default stream.

    With `room`, which may be the matrices themselves, the factors are there.
    """
    l, info = room_for(a, room)
    found = Factorization(backend, spec, layout, math.prod(a.shape[:-2]))
    found.queue(a.address, room.address if room else int(l.gpudata), int(info.gpudata))
    return l, info


def room_for(a: memory.View, room: memory.View | None = None) -> tuple[Any, Any]:
    """Where the factors of an array (..., n, n) go, if not to `room`, and the info of each: nothing is queued."""
    l: Any = room or memory.empty(a.shape, a.dtype, "room for the factors")
    return l, memory.empty(a.shape[:-2], _INFO, "the info")


@dataclass(frozen=True)
class Factorization:
    """What factors `batch` matrices that lie in rows, by a kernel that works in a layout."""

    backend: Backend
    spec: KernelSpec
    layout: Layout
    batch: int

    def queue(self, a: int, l: int, info: int, *, stream: Any = None, room: Room = memory.room) -> None:
        """Queue it for arrays at these addresses, on a stream, with copies in such room as that stream may use."""
        if not self._whole.packed:
            self._whole.run(a, l, info, stream=stream, room=room)
            return
        problem = self.spec.problem
        dense = problem.n**2 * ELEMENT_BYTES[problem.dtype]
        for first, last in slices(self.batch, matrix_bytes(self.spec, self.layout, dense=0)):
            matrices = first * dense
            of_slice = self._launches(last - first)
            of_slice.run(a + matrices, l + matrices, info + first * _INFO.itemsize, stream=stream, room=room)

    @cached_property
    def prepared(self) -> PreparedLaunch | None:
        """A launch for a stream and these addresses, where nothing is copied; else None."""
        return self._whole.prepared

    @cached_property
    def _whole(self) -> Launches:
        return self._launches(self.batch)

    def _launches(self, count: int) -> Launches:
        return launches(cast(CudaBackend, self.backend), self.spec, self.layout, count)


def factor_nothing(a: memory.View) -> tuple[Any, Any]:
    """Factors and info of an array (..., n, n) without elements: no matrices, or matrices of order 0."""
    l = memory.empty(a.shape, a.dtype, "room for the factors")
    return l, memory.to_device(np.zeros(a.shape[:-2], np.int32), "the info")


@dataclass(frozen=True)
class _Launch:
    """A kernel and its arguments: the addresses in these places of a call's, then words that never change."""

    function: Function
    items: int
    places: tuple[int, ...]
    words: tuple[int, ...]


_DENSE, _FACTORS, _STATUS, _PACKED, _RESULT = range(5)


@dataclass(frozen=True)
class Launches:
    """What factors dense matrices in rows: kernels on them, and on packed copies of `packed` bytes."""

    gpu: Device
    launches: tuple[_Launch, ...]
    packed: int
    in_place: bool

    def run(self, a: int, l: int, info: int, *, stream: Any = None, room: Room = memory.room) -> None:
        """Queue it for arrays at these addresses; the factors may be written over the matrices."""
        addresses: tuple[int, ...] = (a, l, info)
        if self.packed:
            packed = room(self.packed, "a copy of the matrices in another layout")
            result = packed if self.in_place else room(self.packed, "the factors in another layout")
            addresses = (a, l, info, packed, result)
        # Several kernels are a queue; one alone is a single call.
        if len(self.launches) == 1:
            self._run(self.launches[0], addresses, stream)
            return
        with self.gpu.queueing():
            for launch in self.launches:
                self._run(launch, addresses, stream)

    @cached_property
    def prepared(self) -> PreparedLaunch | None:
        """The one launch, laid out, where nothing is packed; else None."""
        if self.packed:
            return None
        (launch,) = self.launches
        return self.gpu.prepared(launch.function, launch.items, len(launch.places), launch.words)

    def _run(self, launch: _Launch, addresses: tuple[int, ...], stream: Any) -> None:
        words = [addresses[place] for place in launch.places]
        words += launch.words
        self.gpu.run(launch.function, launch.items, words, stream)


class _Noted:
    """Notes the launches of a copy between layouts, in place of making them; see `support.Launcher`."""

    def __init__(self, gpu: Device, places: tuple[int, ...]) -> None:
        self._gpu, self._places = gpu, places
        self.launches: list[_Launch] = []

    def launch(self, source: KernelSource, items: int, args: support.Arguments, stream: object | None = None) -> None:
        words = tuple(word_of(argument) for argument in args[len(self._places) :])
        self.launches.append(_Launch(self._gpu.load(source), items, self._places, words))


# Working out how arrays are copied takes longer than launching the copy.
@lru_cache(maxsize=256)
def launches(backend: CudaBackend, spec: KernelSpec, layout: Layout, batch: int) -> Launches:
    """What factors `batch` dense matrices by a kernel that works in a layout."""
    kernel = cast(CudaKernel, backend.kernel(spec))
    n, dtype, gpu = spec.problem.n, spec.problem.dtype, kernel.gpu
    places = (_DENSE, _FACTORS) if layout == _AS_THEY_ARE else (_PACKED, _RESULT)
    factorization = _Launch(kernel.function, batch, (*places, _STATUS), kernel.geometry(batch, layout))
    if layout == _AS_THEY_ARE:
        return Launches(gpu, (factorization,), 0, spec.in_place)
    pack, unpack = _Noted(gpu, (_DENSE, _PACKED)), _Noted(gpu, (_RESULT, _FACTORS))
    support.pack(pack, 0, 0, n, batch, layout, dtype)
    cleared = {"lower": "upper", "upper": "lower"}[spec.problem.uplo]
    support.unpack(unpack, 0, 0, n, batch, layout, dtype, clear=cleared)
    packed = math.prod(array_shape(n, batch, layout)) * ELEMENT_BYTES[dtype]
    return Launches(gpu, (*pack.launches, factorization, *unpack.launches), packed, spec.in_place)


def matrix_bytes(spec: KernelSpec, layout: Layout, dense: int) -> int:
    """Bytes that each matrix of a slice takes on the GPU: `dense` dense copies, packed ones, and its info."""
    packed = 0 if layout == _AS_THEY_ARE else 1 if spec.in_place else 2
    copies = dense + packed
    return copies * spec.problem.n**2 * ELEMENT_BYTES[spec.problem.dtype] + _INFO.itemsize


def slices(batch: int, matrix_bytes: int) -> Iterator[tuple[int, int]]:
    """First and last matrix of each slice that fits, as equal in size as whole steps allow."""
    if batch * matrix_bytes <= max(_SMALL_BYTES, memory.kept_bytes()):
        return iter([(0, batch)] * bool(batch))
    most = max(int(memory.free_bytes() * USABLE) // matrix_bytes // STEP, 1) * STEP
    count = max(1, -(-batch // most))
    length = max(-(-batch // (count * STEP)), 1) * STEP
    return ((first, min(first + length, batch)) for first in range(0, batch, length))
