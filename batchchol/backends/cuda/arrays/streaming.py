"""Arrays of the host factored by one GPU or several in slices: copies to it, kernels and copies back overlap.

Slots take turns, those of all GPUs. Each has a stream, room on its GPU, and a pinned buffer of the host, which the
link reaches at its full rate: cores copy a slice into it while the GPU works on those before, and its factors out of
it afterwards. Arrays that are pinned already are copied as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from batchchol.backends import get_backend
from batchchol.backends.cuda import gpus, memory
from batchchol.backends.cuda.arrays import dense
from batchchol.backends.cuda.backend import CudaBackend
from batchchol.backends.cuda.device import Device, device, device_of
from batchchol.batches.host_memory import aligned_empty
from batchchol.parallel import available_threads, over_ranges
from kernelgen import KernelSpec, Layout

SLICE_BYTES = 64 << 20
"""What a slot's buffer holds: of 8, 32 and 64 MiB the fastest for 2 GiB, where 16 cores copy (H200)."""
SLOTS = 3
"""Of a GPU: one is filled, one copies and computes, one is emptied."""

# Pinning takes the system longer than small slices are worth: it is done in few steps.
_LEAST_PINNED = 1 << 20
_INFO = np.dtype(np.int32)
_HOST = NDArray[Any]


def factor_host(
    a: _HOST, spec: KernelSpec, layout: Layout, room: _HOST | None = None
) -> tuple[_HOST, NDArray[np.int32]]:
    """Factors and info of an array of the host, (batch, n, n), as arrays of the host.

    The factors are in `room`, if it is given, which may be the matrices themselves. All GPUs that this thread's calls
    use have a share.
    """
    l = aligned_empty(a.shape, a.dtype, f"an array of shape {a.shape}") if room is None else room
    info = np.empty(len(a), _INFO)
    parts = list(_slices(len(a), spec, layout))
    with _slots(len(parts)) as slots:
        waiting: deque[_Slot] = deque()
        for index, (first, last) in enumerate(parts):
            slot = slots[index % len(slots)]
            if len(waiting) == len(slots):
                waiting.popleft().end()
            slot.begin(a[first:last], l[first:last], info[first:last], spec, layout)
            waiting.append(slot)
        for slot in waiting:
            slot.end()
    return l, info


def _slices(batch: int, spec: KernelSpec, layout: Layout) -> Iterator[tuple[int, int]]:
    """First and last matrix of each slice: as many as a slot's buffer holds, and all slots' room on each GPU."""
    each = dense.matrix_bytes(spec, layout, dense=2)
    n, itemsize, numbers = spec.problem.n, np.dtype(spec.problem.dtype).itemsize, gpus.chosen()
    fits = int(min(map(_free_bytes, numbers)) * dense.USABLE) // SLOTS // each
    share = -(-batch // len(numbers)) + dense.STEP - 1
    length = max(min(SLICE_BYTES // (n * n * itemsize), fits, share) // dense.STEP, 1) * dense.STEP
    return ((first, min(first + length, batch)) for first in range(0, batch, length))


def _free_bytes(number: int) -> int:
    with gpus.on(number):
        return memory.free_bytes()


class _Slot:
    """A stream of a GPU, and what its slice takes there and in pinned memory of the host."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._stream = gpu.pycuda.Stream()
        self._pinned = np.empty(0, np.uint8)
        self._status = np.empty(0, _INFO)
        self._rooms: dict[str, Any] = {}
        self._out: Callable[[], None] = _nothing

    def begin(self, a: _HOST, l: _HOST, info: NDArray[np.int32], spec: KernelSpec, layout: Layout) -> None:
        """Queue a slice; `end` has its factors in `l` and `info`."""
        with _used(self._gpu):
            self._begin(a, l, info, spec, layout)

    def _begin(self, a: _HOST, l: _HOST, info: NDArray[np.int32], spec: KernelSpec, layout: Layout) -> None:
        source = a if _is_pinned(self._gpu, a) else self._staged(a)
        given = self.room(a.nbytes, "a slice of the matrices")
        launches = dense.launches(cast(CudaBackend, get_backend("cuda")), spec, layout, len(a))
        apart = not (launches.packed or launches.in_place)
        result = self.room(a.nbytes, "a slice of the factors") if apart else given
        status = self.room(info.nbytes, "the info of a slice")
        target = l if _is_pinned(self._gpu, l) else self._buffer(l)
        self._status = self._info(len(info))
        copies = self._gpu.pycuda
        copies.memcpy_htod_async(given, source, self._stream)
        launches.run(given, result, status, stream=self._stream, room=self.room)
        copies.memcpy_dtoh_async(target, result, self._stream)
        copies.memcpy_dtoh_async(self._status, status, self._stream)
        self._out = partial(self._copy_out, target, l, info)

    def end(self) -> None:
        """Wait for the slice, and copy its factors and info to their place."""
        with _used(self._gpu):
            self._stream.synchronize()
        out, self._out = self._out, _nothing
        out()

    def room(self, nbytes: int, purpose: str) -> int:
        """Memory of the GPU for a purpose, the same for each slice: the stream uses it for one after another."""
        found = self._rooms.get(purpose)
        if found is None or found[1] < nbytes:
            self._rooms.pop(purpose, None)
            found = self._rooms[purpose] = memory.room(nbytes, purpose), nbytes
        return int(found[0])

    def leave(self) -> None:
        """Stop, and free the memory of the GPU; the pinned buffer, which takes long to allocate, stays."""
        with _used(self._gpu):
            self._gpu.driver.synchronize()
            self._rooms.clear()
        self._out = _nothing
        _spare(self._gpu).append(self)

    def _staged(self, a: _HOST) -> _HOST:
        copied = self._buffer(a)
        copy(a, copied)
        return copied

    def _copy_out(self, target: _HOST, l: _HOST, info: NDArray[np.int32]) -> None:
        if target is not l:
            copy(target, l)
        info[:] = self._status

    def _buffer(self, like: _HOST) -> _HOST:
        """The pinned buffer as an array: of the matrices and then of the factors, which replace them."""
        if self._pinned.nbytes < like.nbytes:
            nbytes = max(_LEAST_PINNED, 1 << (like.nbytes - 1).bit_length())
            self._pinned = self._gpu.pycuda.pagelocked_empty(nbytes, np.uint8)
        return self._pinned[: like.nbytes].view(like.dtype.newbyteorder("=")).reshape(like.shape)

    def _info(self, count: int) -> NDArray[np.int32]:
        whole = self._status.base if isinstance(self._status.base, np.ndarray) else self._status
        if len(whole) < count:
            whole = self._gpu.pycuda.pagelocked_empty(count, _INFO)
        return whole[:count]


def _nothing() -> None:
    """Copy nothing: the slot holds no slice."""


@contextmanager
def _slots(slices: int) -> Iterator[list[_Slot]]:
    """Slots for slices, GPU by GPU in turn, that no other call uses.

    On the way out none works any more, and their memory of the GPUs is free.
    """
    numbers = gpus.chosen()[:slices]
    turns = [number for _ in range(SLOTS) for number in numbers][:slices]
    slots: list[_Slot] = []
    with _used(device_of(numbers[0]) if numbers else device()):
        try:
            slots += map(_slot, turns)
            yield slots
        finally:
            for slot in slots:
                slot.leave()


def _slot(number: int) -> _Slot:
    gpu = device_of(number)
    with _used(gpu):
        return spare.pop() if (spare := _spare(gpu)) else _Slot(gpu)


@contextmanager
def _used(gpu: Device) -> Iterator[None]:
    """Have this thread's calls use a GPU, whose context is current."""
    with gpus.on(gpu.number), gpu.current("factoring in slices"):
        yield


@cache
def _spare(gpu: Device) -> deque[_Slot]:
    """The slots of a GPU that are kept between calls, no more than are used at once."""
    return deque(maxlen=SLOTS)


def copy(source: _HOST, target: _HOST) -> None:
    """Copy matrices on all cores."""

    def work(first: int, last: int) -> int:
        np.copyto(target[first:last], source[first:last])
        return 0

    over_ranges(work, len(source), available_threads(), 2 * source.nbytes, arrays=(source, target))


def _is_pinned(gpu: Device, a: _HOST) -> bool:
    """Whether the link can reach an array of the host as it is."""
    return bool(a.flags.c_contiguous and a.dtype.isnative and gpu.driver.is_pinned(a.ctypes.data))
