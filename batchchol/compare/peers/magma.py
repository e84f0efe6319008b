"""MAGMA: `magma_spotrf_batched`, in place, on an array of pointers made ahead; through ctypes."""

from __future__ import annotations

import ctypes
import os
from ctypes.util import find_library
from functools import cache

from batchchol.compare.contenders import Arena, Contender
from batchchol.compare.peers.base import Peer, lapack_name, on_pointers
from batchchol.errors import BatchcholError

VARIABLE = "BATCHCHOL_MAGMA"
_LOWER = 122  # MagmaLower


def contenders(arena: Arena) -> list[Contender]:
    """The lower triangles of column-major matrices."""
    name, queue = f"magma_{lapack_name('potrf_batched', arena.dtype)}", _queue()
    function = getattr(_library(), name)
    integer, address = ctypes.c_int, ctypes.c_void_p
    function.argtypes = (integer, integer, address, integer, address, integer, address)

    def factor(pointers: int, info: int) -> None:
        if refused := function(_LOWER, arena.n, pointers, arena.n, info, arena.batch, queue):
            raise BatchcholError(f"{name} returned {refused}, expected 0")

    return [on_pointers(arena, f"{name}, in place", factor)]


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


PEER = Peer(
    "magma",
    "cuda",
    _version,
    {"potrf": contenders},
    missing="no libmagma that can be used ({error})",
    hint=f"build MAGMA for this GPU and set {VARIABLE} to its libmagma.so",
)
