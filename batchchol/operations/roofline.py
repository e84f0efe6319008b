"""How fast this machine could be: compulsory traffic and flops, against measured ceilings.

The roofline fraction of a measured time is the share of it that the slower of two unavoidable things would take:
every compulsory byte at the rate of the machine's best copy, or every flop at its arithmetic peak.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from batchchol.artifacts.c_library import Library, load, supported_targets
from batchchol.batches import host_memory
from batchchol.batches.host_memory import ALIGNMENT, aligned_empty
from batchchol.parallel import available_threads, over_ranges
from kernelgen import KernelSource, Layout
from kernelgen.emit.simd import generate_peak_kernel
from kernelgen.operations import OPERATIONS, Argument
from kernelgen.targets import ELEMENT_BYTES

INFO_BYTES = 4
# What memory hands out: a canonical triangle drags along what shares a sector with it.
SECTOR_BYTES = 32

MOST_FRACTION = 1.05
"""A larger roofline fraction is no speed: the ceiling was measured too low, such as beside other work."""

BAD_CEILING = "bad ceiling"
"""What a table says in place of such a fraction."""

# Copying what is this many times the last-level cache leaves nothing of it in there.
_CACHES = 4
# Both ceilings are the best of the repetitions that fit into this time, and of this many at least.
_MEASURING_SECONDS = 0.3
_REPETITIONS = 5
_PEAK_STEPS = 400_000
# What multiply_add does in a step: this many chains, each a multiplication and an addition a lane.
_PEAK_CHAINS = 12

# A store that bypasses the caches spares the read of the line that it overwrites: on the machine this was written
# on, twice the rate of memcpy. The vector type is the one that every x86-64 has; wider ones are no faster.
_COPY_SOURCE = """\
/* The copy that the roofline is measured with: bytes first ... last - 1, whole cache lines of aligned arrays. */
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

int stream_copy(char *restrict to, const char *restrict from, int64_t first, int64_t last)
{
#if defined(__SSE2__)
    for (int64_t line = first; line < last; line += 64)
        for (int64_t at = line; at < line + 64; at += 16)
            _mm_stream_si128((__m128i *)(to + at), _mm_load_si128((const __m128i *)(from + at)));
    _mm_sfence();
#else
    memcpy(to + first, from + first, last - first);
#endif
    return 0;
}
"""


@dataclass(frozen=True)
class Ceilings:
    """What the machine reached with `threads` threads.

    Attributes
    ----------
    copy_bytes_per_second : float
        Bytes read plus bytes written, of a copy far larger than the last-level cache.
    peak_flops_per_second : float
        Independent fused multiply-adds of `dtype` on `target`; each counts two.
    """

    copy_bytes_per_second: float
    peak_flops_per_second: float
    threads: int
    dtype: str
    target: str


def flops(n: int, nrhs: int = 1, op: str = "potrf") -> float:
    """Flops that an operation on one matrix of order `n` counts: n³/3 for a factorization."""
    return OPERATIONS[op].flops(n, nrhs)


def compulsory_bytes(n: int, layout: Layout, dtype: str = "float32", nrhs: int = 1, op: str = "potrf") -> float:
    """Bytes per matrix that must cross the memory bus, in and out: those of the operation's arguments.

    Of a packed triangle n (n + 1) / 2 elements. Of a canonical one that is read the sectors of 32 bytes that it
    touches, an average over matrices, since those that follow each other share sectors; of one that is written, with
    its zeroed other triangle, the whole matrix.
    """
    size, arguments = ELEMENT_BYTES[dtype], OPERATIONS[op].arguments
    return sum(_argument_bytes(argument, n, nrhs, layout, size) for argument in arguments)


def _argument_bytes(argument: Argument, n: int, nrhs: int, layout: Layout, size: int) -> float:
    if integers := argument.integers(n):
        return INFO_BYTES * integers
    if argument.shape == "triangle" and layout.kind == "canonical":
        return size * n * n if argument.written else _triangle_sectors(n, layout.order, size) * SECTOR_BYTES
    return size * argument.elements(n, nrhs)


def roofline_seconds(
    n: int, batch: int, layout: Layout, ceilings: Ceilings, nrhs: int = 1, op: str = "potrf"
) -> float:
    """Seconds that a batch takes at least: its bytes at the rate of the copy, or its flops at the peak."""
    copying = batch * compulsory_bytes(n, layout, ceilings.dtype, nrhs, op) / ceilings.copy_bytes_per_second
    return max(copying, batch * flops(n, nrhs, op) / ceilings.peak_flops_per_second)


def roofline_fraction(
    seconds: float, n: int, batch: int, layout: Layout, ceilings: Ceilings, nrhs: int = 1, op: str = "potrf"
) -> float:
    """The share of a measured time that could not have been avoided; 1 is as fast as the machine allows."""
    return roofline_seconds(n, batch, layout, ceilings, nrhs, op) / seconds


def fraction_text(fraction: float) -> str:
    """A roofline fraction for a table: such as "92%", `BAD_CEILING`, or nothing for one that is not known."""
    if math.isnan(fraction):
        return ""
    return BAD_CEILING if fraction > MOST_FRACTION else f"{fraction:.0%}"


@cache
def measured_ceilings(threads: int | None = None, dtype: str = "float32", target: str | None = None) -> Ceilings:
    """Measure the ceilings of the host, once a process: about a second.

    Parameters
    ----------
    threads : int, optional
        By default BATCHCHOL_THREADS, else all cores.
    dtype : {"float32", "float64"}
        Decides the arithmetic peak.
    target : str, optional
        A kernelgen target that this machine runs; by default its widest SIMD.

    Raises
    ------
    BackendUnavailable, CompilerNotFound, CompileError
        If the target is not this machine's or the code that measures cannot be built.
    OutOfMemory
        If there is no room for two arrays far larger than the cache.
    """
    count = threads or available_threads()
    if count < 1:
        raise ValueError(f"threads: got {threads}, expected at least 1")
    chosen = target or supported_targets()[0]
    # Arithmetic first: without a compiler it refuses before gigabytes are copied.
    peak = _peak_rate(count, dtype, chosen)
    return Ceilings(_copy_rate(count), peak, count, dtype, chosen)


@cache
def _triangle_sectors(n: int, order: str, size: int) -> float:
    """Sectors per matrix that the lower triangles touch, over a run of matrices that ends where a sector does."""
    matrix_bytes = n * n * size
    run = SECTOR_BYTES // gcd(SECTOR_BYTES, matrix_bytes)
    row, column = np.tril_indices(n)
    element = row * n + column if order == "row" else column * n + row
    touched = np.arange(run)[:, np.newaxis] * matrix_bytes + element * size
    return len(np.unique(touched // SECTOR_BYTES)) / run


def _copy_rate(threads: int) -> float:
    """Bytes read plus written per second, by whichever copy is the fastest."""
    # A fourth of what is free, where that is less, keeps the measurement from being what uses up the memory.
    size = min(_CACHES * host_memory.last_level_cache_bytes(), host_memory.free_bytes() // 4) // ALIGNMENT * ALIGNMENT
    source = aligned_empty((size,), "uint8", "measuring the copy rate")
    target = aligned_empty((size,), "uint8", "measuring the copy rate")
    source[...], target[...] = 1, 0
    seconds = min(_best_seconds(_over_lines(copy, source, target, threads)) for copy in _copies(target, source))
    return 2 * size / seconds


def _copies(target: NDArray[np.floating], source: NDArray[np.floating]) -> list[Callable[[int, int], int]]:
    """The ways to copy bytes first ... last - 1."""
    function = _copy_library().function(
        "stream_copy", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )

    def streaming(first: int, last: int) -> int:
        return function(target.ctypes.data, source.ctypes.data, first, last)

    def numpy(first: int, last: int) -> int:
        np.copyto(target[first:last], source[first:last])
        return 0

    return [streaming, numpy]


def _over_lines(
    copy: Callable[[int, int], int], source: NDArray[np.floating], target: NDArray[np.floating], threads: int
) -> Callable[[], int]:
    def lines(first: int, last: int) -> int:
        return copy(first * ALIGNMENT, last * ALIGNMENT)

    count = source.nbytes // ALIGNMENT
    return lambda: over_ranges(lines, count, threads, source.nbytes, arrays=(source, target))


def _peak_rate(threads: int, dtype: str, target: str) -> float:
    """Flops per second of all threads together, each with chains of its own."""
    source = generate_peak_kernel(dtype, target)
    function = load(source, target).function(source.entry, ctypes.c_void_p, ctypes.c_int64, result=None)
    # Cache lines of its own for each thread's operands.
    room = np.empty((threads, max(2 * source.lanes, 256)), dtype)

    def work(first: int, last: int) -> int:
        for thread in range(first, last):
            # x <- x/2 + 1/2 converges to 1: no step meets a denormal or an overflow. The result lands here too.
            room[thread] = 0.5
            function(room[thread].ctypes.data, _PEAK_STEPS)
        return 0

    # Handed out as if it were much memory: one range a thread, whatever the size of its result.
    seconds = _best_seconds(lambda: over_ranges(work, threads, threads, threads << 30, arrays=(room,)))
    return 2.0 * _PEAK_CHAINS * source.lanes * _PEAK_STEPS * threads / seconds


def _best_seconds(work: Callable[[], int]) -> float:
    """The shortest of the calls that fit into the measuring time: a ceiling is what was reached, not a habit."""
    work()
    begin, seconds = time.perf_counter(), list[float]()
    while len(seconds) < _REPETITIONS or time.perf_counter() - begin < _MEASURING_SECONDS:
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@cache
def _copy_library() -> Library:
    return load(KernelSource(_COPY_SOURCE, "stream_copy", 1, ()), "generic")
