"""Handlers of XLA's foreign function interface in Python: no compiler is needed, nor a build.

On a GPU one in C comes first where there is a compiler (`xla_launches`), which is told what it can do itself. Behind
it, a handler is a C function that ctypes makes of a Python one; XLA calls it with the interpreter's lock free, and
ctypes takes that. The structures are those of xla/ffi/api/c_api.h, of major version 0, which XLA checks. They are
read as words of 64 bits, all of one at once and out of all memory: by ctypes' fields that would take most of a call.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from batchchol.backends.cuda.launching.prepared import PreparedLaunch
from batchchol.backends.cuda.launching.xla_launches import xla_launches
from batchchol.defaults.generation import Generation

_METADATA, _INTERNAL = 1, 13
# XLA's name of the platform.
_GPU = "CUDA"
_DTYPES: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 11: np.dtype(np.float32), 12: np.dtype(np.float64)}
_WORD_BYTES, _INT = 8, 0xFFFFFFFF
# The most that XLA may be asked for.
_ALIGNMENT = 16
_Function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
# For what waits for nothing: giving up the interpreter's lock takes longer.
_Quick = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
# All that a process can address.
_MEMORY: Any = (ctypes.c_char * (1 << 47)).from_address(0)
_FRAME, _BUFFER = struct.Struct("15Q"), struct.Struct("6Q")
# Where what is read begins, in words, behind the size of a structure and its extensions, which all begin with.
_EXTENSION, _API, _CONTEXT, _ARGUMENTS, _RESULTS = 1, 2, 3, 7, 12
_DTYPE, _DATA, _RANK, _DIMS = 2, 3, 4, 5
# Of the functions of the interface: behind its version (three words more) and what is XLA's own.
_ERROR_CREATE, _ERROR_MESSAGE, _ERROR_DESTROY, _STREAM_GET, _MEMORY_ALLOCATE, _MEMORY_FREE = 6, 7, 8, 10, 15, 16


class Buffer(NamedTuple):
    """An array that XLA has, C-contiguous."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Execution:
    """A call under way: the arrays, and on a GPU the stream and memory for as long as the call is queued."""

    __slots__ = ("_api", "_arguments", "_buffers", "_context", "_handler", "_pieces")

    def __init__(self, frame: tuple[int, ...], handler: int | None = None) -> None:
        self._api, self._context, self._arguments = frame[_API], frame[_CONTEXT], frame[_ARGUMENTS]
        # The number of that of C, if there is one.
        self._handler = handler
        places = _words(frame[_ARGUMENTS + 2], frame[_ARGUMENTS]) + _words(frame[_RESULTS + 2], frame[_RESULTS])
        self._buffers = [_BUFFER.unpack_from(_MEMORY, place) for place in places]
        self._pieces: list[tuple[int, int]] = []

    @property
    def addresses(self) -> list[int]:
        """The addresses of the arguments and the results."""
        return [buffer[_DATA] for buffer in self._buffers]

    def shape(self, place: int) -> tuple[int, ...]:
        """The shape of one of the arguments and results."""
        buffer = self._buffers[place]
        return _words(buffer[_DIMS], buffer[_RANK])

    def dtype(self, place: int) -> np.dtype[Any]:
        """The dtype of one of the arguments and results."""
        return _DTYPES[self._buffers[place][_DTYPE] & _INT]

    def array(self, place: int) -> Buffer:
        """One of the arguments and results."""
        return Buffer(self._buffers[place][_DATA], self.shape(place), self.dtype(place))

    @property
    def arrays(self) -> list[Buffer]:
        """All of them."""
        return [self.array(place) for place in range(len(self._buffers))]

    def remember(self, launch: PreparedLaunch, generation: Generation) -> None:
        """Have the next calls on such arrays do this launch, which was this one's, without Python."""
        launches = None if self._handler is None else xla_launches()
        if launches is not None and self._handler is not None:
            kinds = [(buffer[_DTYPE] & _INT, self.shape(place)) for place, buffer in enumerate(self._buffers)]
            given = tuple(kinds[: self._arguments])
            launches.remember(self._handler, launch, given, len(kinds) - len(given), generation)

    def stream(self) -> int:
        """The address of the stream that XLA orders the call on."""
        return self._ask(_STREAM_GET, "asking for the stream", self._context, 0)

    def room(self, nbytes: int, purpose: str) -> int:
        """The address of memory of XLA's on the GPU: the stream's, until the call is queued."""
        doing = f"allocating {nbytes:,} bytes for {purpose}"
        address = self._ask(_MEMORY_ALLOCATE, doing, self._context, nbytes, _ALIGNMENT, 0)
        self._pieces.append((address, nbytes))
        return address

    def free(self) -> None:
        """Give `room` back: what is queued behind this call may have it."""
        for address, nbytes in self._pieces:
            self._ask(_MEMORY_FREE, "freeing memory", self._context, nbytes, address)

    def _ask(self, place: int, doing: str, *words: int) -> int:
        """Call the interface with a structure of these words; the last of them, which may be its answer."""
        asked = _structure(*words)
        if error := _function(self._api, place)(ctypes.addressof(asked)):
            described = _structure(error, 0)
            _function(self._api, _ERROR_MESSAGE)(ctypes.addressof(described))
            said = ctypes.string_at(_words(ctypes.addressof(described), 4)[-1]).decode()
            _function(self._api, _ERROR_DESTROY)(ctypes.addressof(_structure(error)))
            raise RuntimeError(f"{doing}: {said}")
        return _words(ctypes.addressof(asked), len(words) + 2)[-1]


Handler = Callable[[Execution], None]
# What XLA has the address of lives as long as the process.
_registered: dict[str, list[Any]] = {}


def register(name: str, handlers: dict[str, Handler]) -> None:
    """Make handlers, by XLA's names of platforms, known by a name, unless they are already."""
    if name in _registered:
        return
    kept: list[Any] = []
    for platform, handler in handlers.items():
        launches = xla_launches() if platform == _GPU else None
        place = None if launches is None else launches.reserve()
        function: Any = _Function(_guarded(handler, place))
        kept.append(function)
        if launches is not None and place is not None:
            function = _Function(launches.handler(place, function))
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform=platform)
    _registered[name] = kept


class _Thread(threading.local):
    """Whether Python keeps its state of this thread."""

    kept = False


_thread = _Thread()


def _keep_state() -> None:
    """Have Python keep its state of a thread of XLA's until the process ends.

    Otherwise each call makes it and removes it, which takes longer than all the rest (measured: 32 us and 0.2).
    """
    ctypes.pythonapi.PyGILState_Ensure()
    _thread.kept = True


def _guarded(handler: Handler, place: int | None = None) -> Callable[[int], int]:
    """A handler as XLA calls it, by the one of C that has this number: errors are returned."""

    def call(address: int) -> int:
        if not _thread.kept:
            _keep_state()
        frame = _FRAME.unpack_from(_MEMORY, address)
        if frame[_EXTENSION] and _described(frame[_EXTENSION]):
            return 0
        try:
            execution = Execution(frame, place)
            try:
                handler(execution)
            finally:
                execution.free()
        except Exception as error:
            said = ctypes.create_string_buffer(f"{type(error).__name__}: {error}".encode())
            refusal = _structure(ctypes.addressof(said), _INTERNAL)
            return int(_function(frame[_API], _ERROR_CREATE)(ctypes.addressof(refusal)) or 0)
        return 0

    return call


def _described(extension: int) -> bool:
    """Whether a call with an extension only asks for the version of the interface; it is answered."""
    # Behind the extension's own three words is the address of the metadata, whose second member is the version.
    _, kind, _, metadata = _words(extension, 4)
    if kind & _INT != _METADATA:
        return False
    (ctypes.c_int * 2).from_address(metadata + 3 * _WORD_BYTES)[:] = [0, 1]
    return True


@lru_cache
def _function(api: int, place: int) -> Callable[[int], int | None]:
    """One of the functions of the interface."""
    kind = _Quick if place == _STREAM_GET else _Function
    return kind(*_words(api + place * _WORD_BYTES, 1))


def _structure(*words: int) -> Any:
    """A structure of the interface."""
    packed = _layout(len(words) + 2)
    return ctypes.create_string_buffer(packed.pack(packed.size, 0, *words), packed.size)


def _words(address: int, count: int) -> tuple[int, ...]:
    """Words that follow each other."""
    return _layout(count).unpack_from(_MEMORY, address)


@lru_cache
def _layout(count: int) -> struct.Struct:
    return struct.Struct(f"{count}Q")
