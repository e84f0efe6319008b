"""Copies between canonical and packed arrays, by generated SIMD code wherever whole SIMD groups move."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from batchchol.artifacts.c_library import Library, load, supported_targets
from batchchol.artifacts.no_compiler import warn
from batchchol.batches.layouts import dense_view, padded, stride
from batchchol.errors import CompilerNotFound
from batchchol.parallel import available_threads, over_ranges
from kernelgen import SIMD_TARGETS, Layout
from kernelgen.emit.simd import generate_layout_kernels

_POINTERS, _SIZE = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int64
# Ctrl-C waits for a copy of NumPy's.
_SLICE_BYTES = 1 << 22
# Elements that a mask is repeated to: NumPy's loops over few take as long to begin as to run.
_MASK_ELEMENTS = 4096
_CLEARED = {None: 0, "upper": 1, "lower": 2}


@dataclass(frozen=True)
class Slots:
    """Matrices first, ..., last - 1 of a packed array that holds `batch` matrices of order n."""

    packed: NDArray[np.floating]
    n: int
    batch: int
    layout: Layout
    first: int
    last: int

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The chunk and the place in it of every matrix."""
        matrices = np.arange(self.first, self.last)
        apart = stride(self.batch, self.layout)
        return matrices // apart, matrices % apart

    def slices(self) -> Iterator[tuple[Slots, slice]]:
        """The matrices in parts that NumPy copies in some ten milliseconds, and which of them these are."""
        step = max(1, _SLICE_BYTES // (self.n**2 * self.packed.itemsize))
        for first in range(self.first, self.last, step):
            last = min(first + step, self.last)
            yield replace(self, first=first, last=last), slice(first - self.first, last - self.first)

    def target(self) -> str | None:
        """The widest SIMD that moves these matrices in whole groups, or None."""
        apart = stride(self.batch, self.layout)
        for target in supported_targets():
            lanes = SIMD_TARGETS[target].lanes(self.packed.dtype.name)
            whole = self.last % lanes == 0 or self.last == self.batch
            if apart % lanes == 0 and self.first % lanes == 0 and whole:
                return target
        return None


def pack(dense: NDArray[np.floating], slots: Slots) -> None:
    """Copy a C-contiguous array of canonical matrices, (count, n, n) in row order, into their slots.

    Room in the last chunk beyond the batch becomes identities, once its last matrix is written.
    """
    check_writeable(slots.packed)
    if not _copied("pack", dense, slots):
        view = dense_view(slots.packed, slots.layout)
        for part, matrices in slots.slices():
            view[part.places()] = dense[matrices]


def assign(
    target: NDArray[np.floating],
    source: NDArray[np.floating],
    change: Callable[[NDArray[np.floating]], NDArray[np.floating]] | None = None,
) -> None:
    """Copy an array into another one of its shape, a range of the first axis at a time, each changed by `change`."""

    def work(first: int, last: int) -> int:
        part = source[first:last]
        target[first:last] = part if change is None else change(part)
        return 0

    over_ranges(work, len(target), available_threads(), 2 * target.nbytes, arrays=())


def assign_upper(target: NDArray[np.floating], source: NDArray[np.floating]) -> None:
    """Copy the upper trapezoids of C-contiguous matrices (count, m, n): their first rows, zeros below the diagonal.

    `target` is (count, k, n), k being m at most. Bits are masked: a pass over memory, without a choice per element.
    """
    (count, rows, n), bits = target.shape, np.dtype(f"u{target.itemsize}")
    mask = np.where(np.tri(rows, n, -1, dtype=bool), 0, ~bits.type(0))
    given, taken = source.view(bits), target.view(bits)
    tiled = np.tile(mask.ravel(), max(1, _MASK_ELEMENTS // max(1, mask.size)))

    def work(first: int, last: int) -> int:
        if rows != source.shape[1]:
            np.bitwise_and(given[first:last, :rows], mask, out=taken[first:last])
            return 0
        flat, out = given[first:last].reshape(-1), taken[first:last].reshape(-1)
        whole = len(flat) - len(flat) % len(tiled)
        wide = (-1, len(tiled))
        np.bitwise_and(flat[:whole].reshape(wide), tiled, out=out[:whole].reshape(wide))
        np.bitwise_and(flat[whole:], tiled[: len(flat) - whole], out=out[whole:])
        return 0

    if target.size:
        over_ranges(work, count, available_threads(), 2 * target.nbytes, arrays=())


def check_writeable(data: NDArray[np.floating]) -> None:
    """Refuse to write to a read-only array, of which the generated code would know nothing."""
    if not data.flags.writeable:
        raise ValueError("data: the array of the batch is read-only: use one that can be written, or a copy of it")


def unpack(slots: Slots, dense: NDArray[np.floating], clear: str | None = None) -> None:
    """Copy slots to a C-contiguous array of canonical matrices, (count, n, n) in row order.

    `clear` names the triangle whose elements off the diagonal become zeros: "upper", "lower" or None.
    """
    if not _copied("unpack", dense, slots, _CLEARED[clear]):
        view = dense_view(slots.packed, slots.layout)
        for part, matrices in slots.slices():
            copied = view[part.places()]
            dense[matrices] = copied if clear is None else np.tril(copied) if clear == "upper" else np.triu(copied)


def _copied(name: str, dense: NDArray[np.floating], slots: Slots, *cleared: int) -> bool:
    """Have generated code copy whole groups one way or the other; False where there is none for that."""
    target = slots.target()
    library = None if target is None else _library(dense.dtype.name, target)
    if target is None or library is None:
        return False
    lanes = SIMD_TARGETS[target].lanes(dense.dtype.name)
    function = library.function(name, *_POINTERS, *(_SIZE,) * (6 + len(cleared)), result=None)
    # The kernel counts matrices from the beginning of the batch: so must its pointer to the canonical ones.
    origin, packed = dense.ctypes.data - slots.first * slots.n**2 * dense.itemsize, slots.packed.ctypes.data
    ends = (origin, packed) if name == "pack" else (packed, origin)
    apart, swap = stride(slots.batch, slots.layout), int(slots.layout.order != "row")
    first = slots.first // lanes

    def work(begin: int, stop: int) -> int:
        function(*ends, slots.n, apart, slots.last, swap, *cleared, first + begin, first + stop)
        return 0

    # Packing writes the padding too.
    end = padded(slots.batch, slots.layout) if name == "pack" and slots.last == slots.batch else slots.last
    groups = -(-(end - slots.first) // lanes)
    over_ranges(work, groups, available_threads(), 2 * dense.nbytes, arrays=(dense, slots.packed))
    return True


def _library(dtype: str, target: str) -> Library | None:
    """The generated copies, or None, with a warning, where there is no compiler: NumPy copies then."""
    try:
        return _loaded(dtype, target)
    except CompilerNotFound as error:
        warn(error)
        return None


@cache
def _loaded(dtype: str, target: str) -> Library:
    return load(generate_layout_kernels(dtype, target), target)
