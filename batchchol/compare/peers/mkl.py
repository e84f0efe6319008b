"""Intel MKL: its compact interface, which interleaves matrices as this library does, and its strided batches.

The single dynamic library is called through ctypes, with its sequential layer: both routines are called for ranges
of the batch on this library's own threads, so that no two pools of threads compete.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np

from batchchol.batches.batch import Batch
from batchchol.compare.contenders import Arena, Contender, Factored
from batchchol.compare.peers.base import Peer, lapack_name
from batchchol.parallel import over_ranges
from kernelgen import Layout

# From mkl_types.h, mkl_cblas.h and mkl_service.h.
_COLUMN_MAJOR, _LOWER = 102, 122
_LP64, _SEQUENTIAL = 0, 1
# MKL_COMPACT_SSE, _AVX and _AVX512: the bytes of the vectors that they interleave matrices over.
FORMATS = {181: 16, 182: 32, 183: 64}
_MISSING, _HINT = "Intel MKL is not installed", "pip install mkl (x86-64 only)"
_VERSION_BYTES = 200


def compact_format() -> int:
    """The compact format that MKL itself calls the best on this processor; a key of `FORMATS`."""
    return int(_library().mkl_get_format_compact())


def compact_layout(compact_format: int, dtype: str) -> Layout:
    """The layout that a compact format is, byte for byte."""
    return Layout.chunked(FORMATS[compact_format] // np.dtype(dtype).itemsize, "col")


def factor_compact(batch: Batch, compact_format: int, threads: int) -> None:
    """Factor a packed batch in place by mkl_?potrf_compact; its layout is `compact_layout` of the format.

    MKL has no info here, and leaves the upper triangles alone.
    """
    function = getattr(_library(), "mkl_" + lapack_name("potrf_compact", batch.dtype.name))
    number, pointer = ctypes.c_int, ctypes.c_void_p
    function.argtypes = (number, number, number, pointer, number, pointer, number, number)
    function.restype = None
    n, chunks, chunk = batch.n, len(batch.data), batch.data.shape[-1]
    chunk_bytes = batch.data.strides[0]

    def work(first: int, last: int) -> int:
        origin, status = batch.data.ctypes.data + first * chunk_bytes, ctypes.c_int()
        count = (last - first) * chunk
        function(_COLUMN_MAJOR, _LOWER, n, origin, n, ctypes.byref(status), compact_format, count)
        return status.value

    over_ranges(work, chunks, threads, batch.nbytes, arrays=(batch.data,))


def compact_contenders(arena: Arena) -> list[Contender]:
    """Batches packed in the format that MKL prefers on this processor, factored in place."""
    chosen = compact_format()
    pairs = arena.packed(compact_layout(chosen, arena.dtype))

    def result(index: int) -> Factored:
        a, out = pairs[index]
        return Factored(a, out.marked("lower"))

    def restore() -> None:
        for a, out in pairs:
            np.copyto(out.data, a.data)

    calls = [partial(factor_compact, out, chosen, arena.threads) for _, out in pairs]
    spec = f"mkl_{lapack_name('potrf_compact', arena.dtype)}, format {chosen}"
    return [Contender(spec, calls, result, restore)]


def strided_contenders(arena: Arena) -> list[Contender]:
    """Canonical matrices, factored in place; the upper triangles are left as they were."""
    name = lapack_name("potrf_batch_strided", arena.dtype)
    function, by_reference = getattr(_library(), name), ctypes.byref
    function.restype = None
    arrays, info = arena.each(arena.output), arena.info()

    def call(index: int) -> None:
        array = arrays[index]

        def work(first: int, last: int) -> int:
            n, size, count = ctypes.c_int(arena.n), ctypes.c_int(arena.n**2), ctypes.c_int(last - first)
            origin = ctypes.c_void_p(array.ctypes.data + first * array.strides[0])
            status = ctypes.c_void_p(info.ctypes.data + first * info.itemsize)
            order, stride = by_reference(n), by_reference(size)
            # MKL thinks in columns: its upper triangle is the lower one here.
            function(b"U", order, origin, order, stride, by_reference(count), status)
            return 0

        over_ranges(work, len(array), arena.threads, array.nbytes, arrays=(array, info))

    return [Contender(name, arena.calls(call), lambda index: arena.result(index, info=info), arena.restore)]


def _version() -> str:
    text = ctypes.create_string_buffer(_VERSION_BYTES)
    _library().MKL_Get_Version_String(text, _VERSION_BYTES)
    # "... Library Version 2026.2-Product Build 20260915 for ...".
    words = text.value.decode().split()
    return f"mkl {words[words.index('Version') + 1].removesuffix('-Product')}"


@cache
def _library() -> ctypes.CDLL:
    for path in _places():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        # Both count before the first computation only; the environment may say otherwise.
        library.MKL_Set_Interface_Layer(_LP64)
        library.MKL_Set_Threading_Layer(_SEQUENTIAL)
        return library
    raise ImportError(f"{_MISSING}: {_HINT}")


def _places() -> Iterator[str]:
    """Where MKL's single dynamic library may be: its wheel's files, this environment, the system's search path."""
    try:
        wheel = files("mkl") or []
    except PackageNotFoundError:
        wheel = []
    yield from (str(file.locate()) for file in wheel if file.name.startswith("libmkl_rt.so"))
    yield from map(str, sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*")))
    found = find_library("mkl_rt")
    if found is not None:
        yield found


STRIDED = Peer("mkl", "cpu", _version, {"potrf": strided_contenders}, missing=_MISSING, hint=_HINT)
COMPACT = replace(STRIDED, name="mkl-compact", ways={"potrf": compact_contenders})
