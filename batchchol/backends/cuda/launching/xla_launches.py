"""Handlers of XLA's foreign function interface in C, which launch kernels without Python.

They are compiled by the system's C compiler, as a CPU's kernels are: where there is none, Python handles all calls.
Each has a handler of Python's behind it, which is asked what is not known: that queues the work, and may have the
same work, for arrays of the same shapes in the same context, launched in C from then on.
"""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from batchchol.artifacts import c_library
from batchchol.backends.cuda.launching.driver import LIBRARY
from batchchol.backends.cuda.launching.prepared import PreparedLaunch
from batchchol.defaults.generation import Generation
from batchchol.errors import BatchcholError
from kernelgen import KernelSource

# As in the source.
_HANDLERS, _RANK, _ARRAYS, _WORDS = 24, 8, 8, 8
_SOURCE = Path(__file__).with_suffix(".c")
_FUNCTIONS = "cuCtxGetCurrent", "cuLaunchKernelEx"
# XLA's numbers of types, and shapes.
Shapes = tuple[tuple[int, tuple[int, ...]], ...]


class _Array(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int64), ("rank", ctypes.c_int64), ("dims", ctypes.c_int64 * _RANK))


class _Launch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("valid", "context", "kernel")),
        *((name, ctypes.c_int64) for name in ("arguments", "results", "words")),
        ("shapes", _Array * _ARRAYS),
        ("fixed", ctypes.c_uint64 * _WORDS),
        ("geometry", ctypes.c_uint32 * 8),
    )


class XlaLaunches:
    """The handlers of a library, each for one of XLA's names.

    Parameters
    ----------
    library
        The compiled source.
    current_context, launch : int
        The addresses of cuCtxGetCurrent and cuLaunchKernelEx.
    """

    def __init__(self, library: Any, current_context: int, launch: int) -> None:
        self._library = library
        self._get_context = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(current_context)
        library.xla_handler.restype, library.xla_handler.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        library.xla_begin.restype, library.xla_begin.argtypes = None, (ctypes.c_void_p,) * 2
        library.xla_remember.argtypes = (ctypes.c_int, ctypes.c_void_p)
        library.xla_begin(current_context, launch)
        self._places = count()
        # What C has been told, with the generations that it has the addresses of.
        self._known: set[tuple[int, Shapes, int | None, Generation]] = set()

    def reserve(self) -> int | None:
        """The number of a free handler; None if all are taken."""
        place = next(self._places)
        return place if place < _HANDLERS else None

    def handler(self, place: int, python: Any) -> int:
        """The address of a handler, which asks one of Python's what it does not know."""
        address: int = self._library.xla_handler(place, ctypes.cast(python, ctypes.c_void_p))
        return address

    def remember(
        self, place: int, launch: PreparedLaunch, arguments: Shapes, results: int, generation: Generation
    ) -> None:
        """Have a handler launch what Python has launched for arguments of these types and shapes, if it can.

        For as long as the context that is current is so, and the tables are those of `generation`.
        """
        kernel, geometry, words = launch.laid_out
        context = ctypes.c_void_p()
        status = self._get_context(ctypes.addressof(context))
        key = place, arguments, context.value, generation
        fits = max(len(shape) for _, shape in arguments) <= _RANK and len(words) <= _WORDS
        if status or not context.value or not fits or len(arguments) + results > _ARRAYS or key in self._known:
            return
        known = _Launch(
            ctypes.addressof(generation.valid), context.value, kernel, len(arguments), results, len(words)
        )
        for described, (kind, shape) in zip(known.shapes, arguments, strict=False):
            described.type, described.rank = kind, len(shape)
            described.dims[: len(shape)] = shape
        known.fixed[: len(words)] = words
        blocks, threads, shared_bytes = geometry
        known.geometry[:7] = (blocks, 1, 1, threads, 1, 1, shared_bytes)
        self._known.add(key)
        self._library.xla_remember(place, ctypes.addressof(known))


@cache
def xla_launches() -> XlaLaunches | None:
    """The handlers of this process; None where there is no driver, or no C compiler."""
    try:
        driver = ctypes.CDLL(LIBRARY)
        library = c_library.load(KernelSource(_SOURCE.read_text(), "xla_begin", 1, ()), "generic").handle
    except (OSError, BatchcholError):
        return None
    addresses = (ctypes.cast(getattr(driver, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS)
    return XlaLaunches(library, *addresses)
