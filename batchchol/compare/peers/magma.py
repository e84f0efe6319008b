"""MAGMA through ctypes, in place: `magma_spotrf_batched` on an array of pointers made ahead; of larger matrices also
`magma_spotrf_native`, on the GPU alone, and `magma_spotrf_gpu`, a hybrid, on one after the other.
"""

from __future__ import annotations

import ctypes
import os
from ctypes.util import find_library
from functools import cache, partial

from batchchol.backends.cuda.device import device
from batchchol.compare.contenders import SINGLE, Arena, Contender
from batchchol.compare.peers.base import LOOPED, Peer, addresses_of, in_a_loop, lapack_name, on_pointers
from batchchol.errors import BatchcholError
from kernelgen import MAX_N

VARIABLE = "BATCHCHOL_MAGMA"
_LOWER = 122  # MagmaLower


def contenders(arena: Arena) -> list[Contender]:
    """The lower triangles of column-major matrices; above order 128 also by the routines for one."""
    found = [_batched(arena)]
    if arena.n > MAX_N and arena.batch <= LOOPED:
        found += [_one_by_one(arena, routine) for routine in ("potrf_native", "potrf_gpu")]
    return found


def _batched(arena: Arena) -> Contender:
    name, queue = f"magma_{lapack_name('potrf_batched', arena.dtype)}", _queue()
    function = getattr(_library(), name)
    integer, address = ctypes.c_int, ctypes.c_void_p
    function.argtypes = (integer, integer, address, integer, address, integer, address)

    def factor(pointers: int, info: int) -> None:
        if refused := function(_LOWER, arena.n, pointers, arena.n, info, arena.batch, queue):
            raise BatchcholError(f"{name} returned {refused}, expected 0")

    return on_pointers(arena, f"{name}, in place", factor)


def _one_by_one(arena: Arena, routine: str) -> Contender:
    """They have streams of their own, know nothing of the default one, and wait for themselves."""
    name = f"magma_{lapack_name(routine, arena.dtype)}"
    function = getattr(_library(), name)
    integer, address = ctypes.c_int, ctypes.c_void_p
    function.argtypes = (integer, integer, address, integer, address)

    def factor(matrix: int) -> None:
        info = ctypes.c_int()
        if function(_LOWER, arena.n, matrix, arena.n, ctypes.addressof(info)) or info.value:
            raise BatchcholError(f"{name}: info is {info.value}, expected 0")

    def restore() -> None:
        arena.restore()
        device().synchronize()

    each = [partial(factor, matrix) for matrix in addresses_of(arena)]
    return in_a_loop(arena, f"{name}, in place", each, None, restore=restore, protocols=SINGLE)


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
