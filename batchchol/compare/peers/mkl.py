"""Intel MKL: its compact interface, which interleaves matrices as this library does, and its strided batches.

The single dynamic library is called through ctypes, with its sequential layer: both routines are called for ranges
of the batch on this library's own threads, so that nobody's pool of threads competes with another's.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from ctypes.util import find_library
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np

from batchchol.backends import Availability
from batchchol.batches.batch import Batch
from batchchol.compare.contenders import Contender, Outcome, Workload, canonical, touched
from batchchol.compare.peers.base import Peer
from batchchol.parallel import over_ranges
from kernelgen import Layout

# From mkl_types.h, mkl_cblas.h and mkl_service.h.
_COLUMN_MAJOR, _LOWER = 102, 122
_LP64, _SEQUENTIAL = 0, 1
# MKL_COMPACT_SSE, _AVX and _AVX512: the bytes of the vectors that they interleave matrices over.
FORMATS = {181: 16, 182: 32, 183: 64}
_HINT = "pip install mkl (x86-64 only)"
_VERSION_BYTES = 200


def compact_format() -> int:
    """The compact format that MKL itself calls the best on this processor; a key of `FORMATS`."""
    return int(_loaded().mkl_get_format_compact())


def compact_layout(compact_format: int, dtype: str) -> Layout:
    """The layout that a compact format is, byte for byte."""
    return Layout.chunked(FORMATS[compact_format] // np.dtype(dtype).itemsize, "col")


def factor_compact(batch: Batch, compact_format: int, threads: int) -> None:
    """Factor a packed batch in place by mkl_?potrf_compact; its layout is `compact_layout` of the format.

    MKL has no info here, and leaves the upper triangles alone.
    """
    function = _potrf_compact(batch.dtype.name)
    n, chunks, chunk = batch.n, len(batch.data), batch.data.shape[-1]
    chunk_bytes = batch.data.strides[0]

    def work(first: int, last: int) -> int:
        origin, status = batch.data.ctypes.data + first * chunk_bytes, ctypes.c_int()
        count = (last - first) * chunk
        function(_COLUMN_MAJOR, _LOWER, n, origin, n, ctypes.byref(status), compact_format, count)
        return status.value

    over_ranges(work, chunks, threads, batch.nbytes, arrays=(batch.data,))


def compact_contender(workload: Workload, threads: int) -> Contender:
    """Batches packed in the format that MKL prefers on this processor, factored in place."""
    chosen = compact_format()
    layout = compact_layout(chosen, workload.dtype)
    first = Batch.from_dense(workload.dense, layout)
    batches = [first, *(_like(first) for _ in range(workload.sets(first.nbytes) - 1))]
    info = np.zeros(workload.batch, np.int32)

    def run(index: int) -> Outcome:
        start = time.perf_counter()
        factor_compact(batches[index], chosen, threads)
        seconds = time.perf_counter() - start
        return Outcome(seconds, replace(batches[index], triangle="lower"), info)

    def restore() -> None:
        for batch in batches:
            batch.put(0, workload.dense)

    name = _name("potrf_compact", workload.dtype)
    spec = f"mkl_{name}, format {chosen}"
    return Contender(COMPACT.name, _version(), spec, layout, len(batches), run, restore)


def strided_contender(workload: Workload, threads: int) -> Contender:
    """Canonical matrices, factored in place; the upper triangles are left as they were."""
    sets = range(workload.sets(workload.dense.nbytes))
    arrays = [touched(workload.dense.shape, workload.dtype, "MKL's matrices") for _ in sets]
    name = _name("potrf_batch_strided", workload.dtype)
    function, by_reference = getattr(_loaded(), name), ctypes.byref
    function.restype = None
    info = np.zeros(workload.batch, np.int32)

    def run(index: int) -> Outcome:
        array = arrays[index]

        def work(first: int, last: int) -> int:
            n, size, count = ctypes.c_int(workload.n), ctypes.c_int(workload.n**2), ctypes.c_int(last - first)
            origin = ctypes.c_void_p(array.ctypes.data + first * array.strides[0])
            status = ctypes.c_void_p(info.ctypes.data + first * info.itemsize)
            order, stride = by_reference(n), by_reference(size)
            # MKL thinks in columns: its upper triangle is the lower one here.
            function(b"U", order, origin, order, stride, by_reference(count), status)
            return 0

        start = time.perf_counter()
        over_ranges(work, len(array), threads, array.nbytes, arrays=(array, info))
        seconds = time.perf_counter() - start
        return Outcome(seconds, canonical(array), info)

    def restore() -> None:
        for array in arrays:
            np.copyto(array, workload.dense)

    return Contender(STRIDED.name, _version(), name, Layout.canonical(), len(arrays), run, restore)


def _survey(name: str) -> Availability:
    if _library() is None:
        return Availability(name, False, "Intel MKL is not installed", _HINT)
    return Availability(name, True, _version())


def _name(routine: str, dtype: str) -> str:
    return {"float32": "s", "float64": "d"}[dtype] + routine


def _like(batch: Batch) -> Batch:
    return Batch.empty(batch.n, batch.batch, batch.layout, batch.dtype)


def _potrf_compact(dtype: str) -> Callable[..., None]:
    function = getattr(_loaded(), "mkl_" + _name("potrf_compact", dtype))
    number, pointer = ctypes.c_int, ctypes.c_void_p
    function.argtypes = (number, number, number, pointer, number, pointer, number, number)
    function.restype = None
    return function  # type: ignore[no-any-return]


def _version() -> str:
    text = ctypes.create_string_buffer(_VERSION_BYTES)
    _loaded().MKL_Get_Version_String(text, _VERSION_BYTES)
    # "... Library Version 2026.2-Product Build 20260915 for ...".
    words = text.value.decode().split()
    return f"mkl {words[words.index('Version') + 1].removesuffix('-Product')}"


def _loaded() -> ctypes.CDLL:
    library = _library()
    if library is None:
        raise ImportError(f"Intel MKL is not installed: {_HINT}")
    return library


@cache
def _library() -> ctypes.CDLL | None:
    for path in _places():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        # Both count before the first computation only; the environment may say otherwise.
        library.MKL_Set_Interface_Layer(_LP64)
        library.MKL_Set_Threading_Layer(_SEQUENTIAL)
        return library
    return None


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


COMPACT = Peer("mkl-compact", partial(_survey, "mkl-compact"), compact_contender)
STRIDED = Peer("mkl", partial(_survey, "mkl"), strided_contender)
