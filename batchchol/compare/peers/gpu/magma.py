"""MAGMA: `magma_spotrf_batched`, in place, on an array of pointers that is there before; through ctypes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes.util import find_library
from functools import cache, partial

from batchchol.backends import Availability
from batchchol.compare.gpu_contenders import Arena, DeviceContender, Result
from batchchol.compare.peers.gpu.base import DevicePeer
from batchchol.errors import BatchcholError
from kernelgen import Layout

VARIABLE = "BATCHCHOL_MAGMA"
_LOWER = 122  # MagmaLower
_FUNCTIONS = {"float32": "magma_spotrf_batched", "float64": "magma_dpotrf_batched"}
_POINTER_BYTES = 8


def contenders(arena: Arena) -> Sequence[DeviceContender]:
    """The lower triangles of column-major matrices."""
    name, queue = _FUNCTIONS[arena.dtype], _queue()
    function = getattr(_library(), name)
    integer, address = ctypes.c_int, ctypes.c_void_p
    function.argtypes = (integer, integer, address, integer, address, integer, address)
    pointers, info = arena.pointers(), arena.info()
    status, apart = int(info.gpudata), _POINTER_BYTES * arena.batch

    def call(index: int) -> None:
        # Looked up here, so that whoever may call holds on to the pointers.
        first = int(pointers.gpudata)
        if refused := function(_LOWER, arena.n, first + index * apart, arena.n, status, arena.batch, queue):
            raise BatchcholError(f"{name} returned {refused}, expected 0")

    def result(index: int) -> Result:
        return arena.result(index, info=info, order="col")

    calls = [partial(call, index) for index in range(arena.sets)]
    layout = Layout.canonical("col")
    return [
        DeviceContender(PEER.name, _version(), f"{name}, in place", layout, arena.math, calls, result, arena.restore)
    ]


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ.get(VARIABLE) or find_library("magma") or "libmagma.so")
    if status := library.magma_init():
        raise OSError(f"magma_init returned {status}, expected 0")
    return library


@cache
def _queue() -> ctypes.c_void_p:
    """A queue on the default stream, with cuBLAS and cuSPARSE handles of its own."""
    queue = ctypes.c_void_p()
    nothing = ctypes.c_void_p(None)
    _library().magma_queue_create_from_cuda_internal(
        0, nothing, nothing, nothing, ctypes.byref(queue), b"batchchol", b"", 0
    )
    return queue


def _version() -> str:
    numbers = [ctypes.c_int() for _ in range(3)]
    _library().magma_version(*map(ctypes.byref, numbers))
    return f"MAGMA {'.'.join(str(number.value) for number in numbers)}"


def _survey() -> Availability:
    try:
        return Availability("magma", True, _version())
    except (OSError, AttributeError) as error:
        hint = f"build MAGMA for this GPU and set {VARIABLE} to its libmagma.so"
        return Availability("magma", False, f"no libmagma that can be used ({error})", hint)


PEER = DevicePeer("magma", _survey, contenders)
