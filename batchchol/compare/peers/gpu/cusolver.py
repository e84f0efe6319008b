"""cuSOLVER: `cusolverDnSpotrfBatched` through CuPy, in place, on an array of pointers that is there before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

from batchchol.backends import Availability
from batchchol.backends.cuda import memory
from batchchol.compare.gpu_contenders import Arena, DeviceContender, Result
from batchchol.compare.peers.gpu.base import DevicePeer
from kernelgen import Layout
from kernelgen.targets import ELEMENT_BYTES

_LOWER = 0  # CUBLAS_FILL_MODE_LOWER
_DEFAULT_STREAM = 0
_POINTER_BYTES = 8
_FUNCTIONS = {"float32": "spotrfBatched", "float64": "dpotrfBatched"}
_SINGLE = {"float32": "spotrf", "float64": "dpotrf"}


def contenders(arena: Arena) -> Sequence[DeviceContender]:
    """The lower triangles of column-major matrices."""
    function, handle = getattr(_library(), _FUNCTIONS[arena.dtype]), _handle()
    pointers, info = arena.pointers(), arena.info()
    status, apart = int(info.gpudata), _POINTER_BYTES * arena.batch

    def call(index: int) -> None:
        # Looked up here, so that whoever may call holds on to the pointers.
        first = int(pointers.gpudata)
        function(handle, _LOWER, arena.n, first + index * apart, arena.n, status, arena.batch)

    def result(index: int) -> Result:
        return arena.result(index, info=info, order="col")

    calls = [partial(call, index) for index in range(arena.sets)]
    spec = f"cusolverDn{_FUNCTIONS[arena.dtype].capitalize()}, in place"
    layout = Layout.canonical("col")
    return [DeviceContender(PEER.name, _version(), spec, layout, arena.math, calls, result, arena.restore)]


def potrf(addresses: Sequence[int], n: int, dtype: str, status: int) -> list[Callable[[], None]]:
    """Calls of `cusolverDnSpotrf` (float64: `Dpotrf`), each on one column-major matrix: its lower triangle, in place.

    `status` is the address of an int32 for LAPACK's info.

    Raises
    ------
    ImportError
        If there is no CuPy.
    """
    name, library, handle = _SINGLE[dtype], _library(), _handle()
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


def _survey() -> Availability:
    try:
        return Availability("cusolver", True, _version())
    except (ImportError, AttributeError, RuntimeError) as error:
        return Availability("cusolver", False, f"CuPy cannot be used ({error})", "pip install cupy-cuda13x")


PEER = DevicePeer("cusolver", _survey, contenders)
