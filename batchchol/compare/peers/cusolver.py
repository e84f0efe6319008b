"""cuSOLVER: `cusolverDnSpotrfBatched` through CuPy, in place, on an array of pointers that is there before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

from batchchol.backends.cuda import memory
from batchchol.compare.contenders import Arena, Contender
from batchchol.compare.peers.base import Peer, lapack_name, on_pointers
from kernelgen.targets import ELEMENT_BYTES

_LOWER = 0  # CUBLAS_FILL_MODE_LOWER
_DEFAULT_STREAM = 0


def contenders(arena: Arena) -> list[Contender]:
    """The lower triangles of column-major matrices."""
    name, handle = lapack_name("potrfBatched", arena.dtype), _handle()
    function = getattr(_library(), name)

    def factor(pointers: int, info: int) -> None:
        function(handle, _LOWER, arena.n, pointers, arena.n, info, arena.batch)

    return [on_pointers(arena, f"cusolverDn{name.capitalize()}, in place", factor)]


def potrf(addresses: Sequence[int], n: int, dtype: str, status: int) -> list[Callable[[], None]]:
    """Calls of `cusolverDnSpotrf` (float64: `Dpotrf`), each on one column-major matrix: its lower triangle, in place.

    `status` is the address of an int32 for LAPACK's info.

    Raises
    ------
    ImportError
        If there is no CuPy.
    """
    name, library, handle = lapack_name("potrf", dtype), _library(), _handle()
    elements = int(getattr(library, f"{name}_bufferSize")(handle, _LOWER, n, addresses[0], n))
    # Each call holds on to it.
    work = memory.room(max(elements, 1) * ELEMENT_BYTES[dtype], "cuSOLVER's workspace")
    function = getattr(library, name)
    return [partial(function, handle, _LOWER, n, address, n, work, elements, status) for address in addresses]


@cache
def _library() -> Any:
    return import_module("cupy_backends.cuda.libs.cusolver")


@cache
def _handle() -> int:
    """A handle whose work goes to the default stream."""
    handle = int(_library().create())
    _library().setStream(handle, _DEFAULT_STREAM)
    return handle


def _version() -> str:
    cupy: Any = import_module("cupy")
    return f"cuSOLVER {'.'.join(map(str, _library()._getVersion()))}, CuPy {cupy.__version__}"


PEER = Peer(
    "cusolver",
    "cuda",
    _version,
    contenders,
    missing="CuPy cannot be used ({error})",
    hint="pip install cupy-cuda13x",
)
