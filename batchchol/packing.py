"""Copies between canonical and packed arrays, by generated SIMD code wherever whole SIMD groups move."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from batchchol.layouts import dense_view, padded, stride
from batchchol.native import Library, load, supported_targets
from batchchol.parallel import available_threads, over_ranges
from kernelgen import SIMD_TARGETS, Layout
from kernelgen.simd import generate_layout_kernels

_PACK = (ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_int64,) * 6)
_UNPACK = (ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_int64,) * 7)
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
    target = slots.target()
    if target is None:
        dense_view(slots.packed, slots.layout)[slots.places()] = dense
        return
    lanes = SIMD_TARGETS[target].lanes(dense.dtype.name)
    function = _library(dense.dtype.name, target).function("pack", *_PACK, result=None)
    end = padded(slots.batch, slots.layout) if slots.last == slots.batch else slots.last
    # The kernel counts matrices from the beginning of the batch: so must its pointer to the canonical ones.
    origin = dense.ctypes.data - slots.first * slots.n**2 * dense.itemsize
    apart, swap = stride(slots.batch, slots.layout), int(slots.layout.order != "row")

    def work(begin: int, stop: int) -> int:
        first = slots.first // lanes
        function(origin, slots.packed.ctypes.data, slots.n, apart, slots.last, swap, first + begin, first + stop)
        return 0

    over_ranges(work, (end - slots.first) // lanes, available_threads(), 2 * dense.nbytes)


def check_writeable(data: NDArray[np.floating]) -> None:
    """Refuse to write to a read-only array, of which the generated code would know nothing."""
    if not data.flags.writeable:
        raise ValueError("data: the array of the batch is read-only: use one that can be written, or a copy of it")


def unpack(slots: Slots, dense: NDArray[np.floating], clear: str | None = None) -> None:
    """Copy slots to a C-contiguous array of canonical matrices, (count, n, n) in row order.

    `clear` names the triangle whose elements off the diagonal become zeros: "upper", "lower" or None.
    """
    target = slots.target()
    if target is None:
        dense[...] = dense_view(slots.packed, slots.layout)[slots.places()]
        if clear is not None:
            np.copyto(dense, np.tril(dense) if clear == "upper" else np.triu(dense))
        return
    lanes = SIMD_TARGETS[target].lanes(dense.dtype.name)
    function = _library(dense.dtype.name, target).function("unpack", *_UNPACK, result=None)
    origin = dense.ctypes.data - slots.first * slots.n**2 * dense.itemsize
    apart, swap = stride(slots.batch, slots.layout), int(slots.layout.order != "row")
    cleared = _CLEARED[clear]

    def work(begin: int, stop: int) -> int:
        first, last = slots.first // lanes + begin, slots.first // lanes + stop
        function(slots.packed.ctypes.data, origin, slots.n, apart, slots.last, swap, cleared, first, last)
        return 0

    over_ranges(work, -(-(slots.last - slots.first) // lanes), available_threads(), 2 * dense.nbytes)


@cache
def _library(dtype: str, target: str) -> Library:
    return load(generate_layout_kernels(dtype, target), target)
