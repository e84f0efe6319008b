"""Batches of symmetric matrices by name, seed and slice.

The same name, parameters, seed, n and dtype give matrix i the same bits, whatever slice, batch, layout,
thread, process or device makes it: `philox` documents the random stream and `recipes` the arithmetic.

    a = generate("wishart", n=32, stop=1024)                    # dense (1024, 32, 32), float32
    fill(batch, "diagonally_dominant", seed=1)                   # straight into a layout
    save("a.npy", stream("banded", n=100, stop=2**20))           # never whole in memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.batch import Batch
from batchchol.batches.checks import check_range
from batchchol.batches.host_memory import aligned_empty
from batchchol.datasets import philox, recipes
from batchchol.datasets.catalogue import Parameter, Recipe, catalogue, find
from batchchol.datasets.files import SLICE_BYTES, Slices, check_dtype, load, save, slice_length
from batchchol.datasets.text_files import read_slices, read_text, write_text
from batchchol.parallel import available_threads, over_ranges

__all__ = [
    "Parameter",
    "Recipe",
    "Slices",
    "batch_sizes",
    "catalogue",
    "expected_info",
    "fill",
    "generate",
    "load",
    "read_slices",
    "read_text",
    "save",
    "stream",
    "write_text",
]

SMALLEST_BATCH = 1024
LARGEST_N = 2**16 - 1

# What one thread has in hand at a time: words, temporaries and matrices stay in its own cache.
_CACHE_BYTES = 1 << 20
# Matrices written to a layout at a time: whole cache lines of interleaved data, whatever the dtype.
_LAYOUT_STEP = 64


def generate(
    name: str,
    *,
    n: int,
    start: int = 0,
    stop: int,
    seed: int = 0,
    dtype: str = "float32",
    threads: int | None = None,
    **parameters: object,
) -> NDArray[Any]:
    """Return matrices start ... stop-1 of a data set: shape (stop - start, n, n).

    Parameters
    ----------
    name : str
        A key of `catalogue()`; `parameters` are that recipe's.
    n : int
        Order, 1 ... 65535.
    start, stop : int
        The slice of the endless batch, 0 <= start <= stop < 2**63.
    seed : int
        0 ... 2**64 - 1.
    dtype : {"float32", "float64"}
        float32 matrices are the float64 ones, each element rounded once.
    threads : int, optional
        Threads that share the work; the default is BATCHCHOL_THREADS, else the cores of this process.

    Raises
    ------
    ValueError
        An unknown name or parameter, or a value out of range.
    OutOfMemory
        The batch would not fit in memory: see `stream`.
    BatchcholError
        The recipe needs a package that is not installed.
    """
    source = _settle(name, n, start, stop, seed, dtype, parameters)
    return _dense(source, start, stop, _thread_count(threads))


def stream(
    name: str,
    *,
    n: int,
    start: int = 0,
    stop: int,
    seed: int = 0,
    dtype: str = "float32",
    threads: int | None = None,
    slice_bytes: int = SLICE_BYTES,
    **parameters: object,
) -> Slices:
    """Return what `generate` does, in slices (index of the first matrix, dense) of about `slice_bytes`."""
    source = _settle(name, n, start, stop, seed, dtype, parameters)
    count, length = _thread_count(threads), slice_length(n, dtype, slice_bytes)

    def parts() -> Iterator[tuple[int, NDArray[Any]]]:
        for first in range(start, stop, length):
            yield first, _dense(source, first, min(first + length, stop), count)

    return Slices(stop - start, n, dtype, parts())


def fill(
    batch: Batch,
    name: str,
    *,
    start: int = 0,
    seed: int = 0,
    threads: int | None = None,
    **parameters: object,
) -> None:
    """Overwrite `batch`, whatever its layout, with matrices start ... start + batch.batch - 1 of a data set.

    The matrices go into the layout in cache-sized pieces: no dense copy of the batch exists at any time.
    Parameters and errors are those of `generate`; n and dtype are the batch's.
    """
    source = _settle(name, batch.n, start, start + batch.batch, seed, np.dtype(batch.dtype).name, parameters)
    step = -(-source.step // _LAYOUT_STEP) * _LAYOUT_STEP

    def put(first: int, last: int) -> None:
        dense = np.empty((min(step, last - first), source.n, source.n), source.dtype)
        for at in range(first, last, step):
            piece = dense[: min(step, last - at)]
            source.write(start + at, piece)
            batch.put(at, piece)

    _share(put, batch.batch, step, _thread_count(threads))


def expected_info(
    name: str, *, n: int, start: int = 0, stop: int, dtype: str = "float32", **parameters: object
) -> NDArray[np.int32]:
    """Return the info that factoring matrices start ... stop-1 must report: shape (stop - start,), int32.

    Zeros for a positive definite recipe, the chosen minors for `failing`. ValueError where it is not known
    beforehand (`integer_recipe`).
    """
    _settle(name, n, start, stop, 0, dtype, parameters)
    if name == "failing":
        return recipes.failing_minors(n, start, stop, parameters)
    if not find(name).spd:
        raise ValueError(f"{name}: which members fail is not known beforehand; ask LAPACK")
    return np.zeros(stop - start, dtype=np.int32)


def batch_sizes(free_bytes: int, *, n: int, dtype: str = "float32", copies: int = 2) -> list[int]:
    """Return the powers of two, from 1024 up, whose batches fit in `free_bytes`.

    A batch counts `copies` times, and its info once. Empty if even 1024 matrices do not fit.
    """
    for what, value, least in (("free_bytes", free_bytes, 0), ("n", n, 1), ("copies", copies, 1)):
        check_range(what, value, least)
    check_dtype(dtype)
    per_matrix = copies * n * n * np.dtype(dtype).itemsize + np.dtype(np.int32).itemsize
    largest = free_bytes // per_matrix
    return [1 << power for power in range(SMALLEST_BATCH.bit_length() - 1, largest.bit_length())]


@dataclass(frozen=True)
class _Source:
    """A data set settled for one order, dtype and seed: it only needs to be told the slice."""

    plan: recipes.Plan
    n: int
    dtype: str
    seed: int

    @property
    def step(self) -> int:
        """How many matrices to make at a time."""
        a_matrix = self.plan.blocks * philox.BYTES_PER_BLOCK + self.plan.scratch
        return max(1, _CACHE_BYTES // (a_matrix + self.n**2 * np.dtype(self.dtype).itemsize))

    def write(self, start: int, out: NDArray[Any]) -> None:
        """Overwrite `out`, (m, n, n), with matrices start ... start + m - 1, in pieces of `step`."""
        words = philox.Words(self.seed, self.plan.stream, self.n, self.plan.blocks, start)
        for at in range(0, len(out), self.step):
            piece = out[at : at + self.step]
            self.plan.build(words.take(len(piece)), start + at, piece)


def _dense(source: _Source, start: int, stop: int, threads: int) -> NDArray[Any]:
    shape = (stop - start, source.n, source.n)
    dense = aligned_empty(shape, source.dtype, f"a batch of shape {shape}")
    _share(lambda first, last: source.write(start + first, dense[first:last]), len(dense), source.step, threads)
    return dense


def _settle(
    name: str, n: int, start: int, stop: int, seed: int, dtype: str, parameters: dict[str, object]
) -> _Source:
    check_slice(n, start, stop, seed, dtype)
    return _Source(recipes.plan(name, n, dtype, parameters), n, dtype, seed)


def check_slice(n: int, start: int, stop: int, seed: int, dtype: str) -> None:
    """Refuse a part of a data set that is out of range.

    Raises
    ------
    ValueError
        Names the argument, what was got and what is expected.
    """
    check_range("n", n, 1, LARGEST_N)
    check_range("start", start, 0, 2**63 - 1)
    check_range("stop", stop, start, 2**63 - 1)
    check_range("seed", seed, 0, 2**64 - 1)
    check_dtype(dtype)


def _share(work: Callable[[int, int], None], count: int, step: int, threads: int) -> None:
    """Call work(first, last) on ranges of whole steps that cover `count`; NumPy releases the GIL meanwhile."""

    def steps(first: int, last: int) -> int:
        work(first * step, min(count, last * step))
        return 0

    # A step takes a millisecond and more: each is handed out as if it moved much memory.
    hands = -(-count // step)
    over_ranges(steps, hands, threads, hands << 30, arrays=())


def _thread_count(threads: int | None) -> int:
    chosen = available_threads() if threads is None else threads
    check_range("threads", chosen, 1)
    return chosen
