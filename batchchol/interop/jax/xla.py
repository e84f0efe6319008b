"""Handlers of XLA's foreign function interface in Python: no compiler is needed, nor a build.

A handler is a C function that ctypes makes of a Python one; XLA calls it with the interpreter's lock free, and ctypes
takes that. The structures are those of xla/ffi/api/c_api.h, of major version 0, which XLA checks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

_METADATA, _INTERNAL = 1, 13
_DTYPES: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 11: np.dtype(np.float32), 12: np.dtype(np.float64)}
_Address = ctypes.c_void_p
_Function = ctypes.CFUNCTYPE(_Address, _Address)


def _struct(name: str, **fields: Any) -> Any:
    """A structure of the interface, whose first fields all have."""
    members = (("struct_size", ctypes.c_size_t), ("extension", _Address), *fields.items())
    return type(name, (ctypes.Structure,), {"_fields_": members})


_Version = _struct("Version", major=ctypes.c_int, minor=ctypes.c_int)
_Buffer = _struct(
    "Buffer", dtype=ctypes.c_int, data=_Address, rank=ctypes.c_int64, dims=ctypes.POINTER(ctypes.c_int64)
)
_Buffers = _struct("Buffers", size=ctypes.c_int64, types=_Address, items=ctypes.POINTER(_Address))
_Error = _struct("Error", message=ctypes.c_char_p, code=ctypes.c_int)
_Destruction = _struct("Destruction", error=_Address)
_StreamOf = _struct("StreamOf", context=_Address, stream=_Address)
_Allocation = _struct("Allocation", context=_Address, size=ctypes.c_size_t, alignment=ctypes.c_size_t, data=_Address)
_Freeing = _struct("Freeing", context=_Address, size=ctypes.c_size_t, data=_Address)
_Api = _struct(
    "Api",
    version=_Version,
    internal=_Address,
    error_create=_Function,
    error_get_message=_Address,
    error_destroy=_Function,
    handler_register=_Address,
    stream_get=_Function,
    type_register=_Address,
    execution_context_get=_Address,
    state_set=_Address,
    state_get=_Address,
    memory_allocate=_Function,
    memory_free=_Function,
)
_Frame = _struct(
    "Frame",
    api=ctypes.POINTER(_Api),
    context=_Address,
    stage=ctypes.c_int,
    arguments=_Buffers,
    results=_Buffers,
)


class _Extension(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", _Address))


class _Metadata(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32))


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


class Buffer(NamedTuple):
    """An array that XLA has, C-contiguous."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Execution:
    """A call under way: the arrays, and on a GPU the stream and memory for as long as the call is queued."""

    def __init__(self, frame: Any) -> None:
        self._api, self._context = frame.api.contents, frame.context
        self.arrays = [
            _seen(side.items[place]) for side in (frame.arguments, frame.results) for place in range(side.size)
        ]
        self._pieces: list[tuple[int, int]] = []

    def stream(self) -> int:
        """The address of the stream that XLA orders the call on."""
        asked = _made(_StreamOf, context=self._context)
        self._call(self._api.stream_get, asked, "asking for the stream")
        return asked.stream or 0

    def room(self, nbytes: int, purpose: str) -> int:
        """The address of memory of XLA's on the GPU: the stream's, until the call is queued."""
        asked = _made(_Allocation, context=self._context, size=nbytes, alignment=256)
        self._call(self._api.memory_allocate, asked, f"allocating {nbytes:,} bytes for {purpose}")
        address = asked.data or 0
        self._pieces.append((address, nbytes))
        return address

    def free(self) -> None:
        """Give `room` back: what is queued behind this call may have it."""
        for address, nbytes in self._pieces:
            freed = _made(_Freeing, context=self._context, size=nbytes, data=address)
            self._call(self._api.memory_free, freed, "freeing memory")

    def _call(self, function: Any, asked: Any, doing: str) -> None:
        if error := function(ctypes.addressof(asked)):
            self._api.error_destroy(ctypes.addressof(_made(_Destruction, error=error)))
            raise RuntimeError(f"XLA refused {doing}")


Handler = Callable[[Execution], None]
# What XLA has the address of lives as long as the process.
_registered: dict[str, list[Any]] = {}


def register(name: str, handlers: dict[str, Handler]) -> None:
    """Make handlers, by XLA's names of platforms, known by a name, unless they are already."""
    if name in _registered:
        return
    functions = {platform: _Function(_guarded(handler)) for platform, handler in handlers.items()}
    for platform, function in functions.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform=platform)
    _registered[name] = list(functions.values())


def _guarded(handler: Handler) -> Callable[[int], int]:
    """A handler as XLA calls it: errors are returned."""

    def call(address: int) -> int:
        frame = _Frame.from_address(address)
        if frame.extension:
            extension = _Extension.from_address(frame.extension)
            if extension.type == _METADATA:
                described = _MetadataExtension.from_address(frame.extension).metadata.contents
                described.version.major, described.version.minor = 0, 1
                return 0
        try:
            execution = Execution(frame)
            try:
                handler(execution)
            finally:
                execution.free()
        except Exception as error:
            said = f"{type(error).__name__}: {error}".encode()
            refusal = _made(_Error, message=said, code=_INTERNAL)
            return int(frame.api.contents.error_create(ctypes.addressof(refusal)) or 0)
        return 0

    return call


def _made(kind: Any, **fields: Any) -> Any:
    """A structure of the interface that knows its size."""
    return kind(struct_size=ctypes.sizeof(kind), **fields)


def _seen(address: int) -> Buffer:
    buffer = _Buffer.from_address(address)
    return Buffer(buffer.data or 0, tuple(buffer.dims[: buffer.rank]), _DTYPES[buffer.dtype])
