"""Factors of, and solutions by, matrices of a GPU that are larger than any kernel's of `kernelgen.MAX_N`.

Those whose lower triangle fits into a multiprocessor's shared memory are tiles, one block of threads to each. Others
are factored by blocks: many together to order 1,024, larger ones one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.algorithms import blocked
from batchchol.algorithms.device_calls import DeviceCalls
from batchchol.algorithms.hybrid import HybridCalls
from batchchol.algorithms.launching import OnGpu, workspace
from batchchol.algorithms.level3 import Block
from batchchol.algorithms.on_chip import OnChip, kernel
from batchchol.algorithms.plan_tables import chosen
from batchchol.algorithms.plans import ALONE, Plan
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.arrays.dense import slices
from batchchol.backends.cuda.bindings import cublas
from batchchol.backends.cuda.bindings.host_block import host_block
from batchchol.backends.cuda.device import Device, device
from batchchol.backends.cuda.launching.functions import Function
from batchchol.batches.host_memory import aligned_empty
from kernelgen import Layout
from kernelgen.emit.panels import panel as kernels
from kernelgen.emit.panels.border import Border, border
from kernelgen.emit.panels.fused_panel import FusedPanel, fused_panel
from kernelgen.targets import ELEMENT_BYTES

_INFO = np.dtype(np.int32)
# The least tiles of a matrix for each block of threads: more blocks only wait for each other.
_TASKS_OF_A_BLOCK = 4
# The rows of tiles from which on two blocks are worth it even where matrices fill the GPU.
_TILES_OF_TWO = 5


def factor_device(
    a: memory.View, upper: bool, given: Plan | None = None, room: memory.View | None = None
) -> tuple[Any, Any]:
    """Factors and info of an array (..., n, n) of the GPU, as GPUArrays; all is queued on the default stream.

    With `room`, which may be the matrices themselves, the factors are there.
    Memory beside these is cuBLAS's workspace alone, for orders that are no tile.

    Raises
    ------
    OutOfMemory
        If they, or cuBLAS's workspace, would not fit.
    BatchcholError
        If cuBLAS is needed, and CuPy cannot be imported.
    """
    *outer, n, _ = a.shape
    how = given or chosen(device(), n, prod(outer), a.dtype.name, upper).plan
    if how.blocking is not None:
        cublas.prepare(side=how.blocking.ahead)
    purpose = f"room for the factors of {prod(outer):,} matrices of order {n:,}"
    l: Any = room or memory.empty(a.shape, a.dtype, purpose)
    info = memory.empty(tuple(outer), _INFO, "the info")
    factor_at(device(), how, a.address, room.address if room else int(l.gpudata), int(info.gpudata), n, prod(outer))
    return l, info


def factor_at(
    gpu: Device, how: Plan, a: int, l: int, info: int, n: int, batch: int, stream: Any = None, work: int = 0
) -> None:
    """Queue the factorization of canonical matrices at an address into those at another, which may be the same.

    `work_words` words of zeros at `work`, which are zeros again at the end, are the caller's, who keeps them until
    the work is done; by default they come from this library's memory.
    """
    with gpu.queueing():
        if isinstance(how.panel, OnChip):
            gpu.launch(kernel(how.panel, n), batch, (a, l, info, 1, batch), stream)
        elif how.blocking is None and isinstance(how.panel, FusedPanel):
            function, items, sizes = _one_launch(gpu, how, n, batch)
            counts = work or _counted(gpu, how, n, batch, stream)
            gpu.run(function, items, (a, l, info, counts, *sizes), stream)
            if last := how.border_rows(n):
                rows = border(Border(how.panel.dtype, how.panel.order, last))
                gpu.launch(rows, batch, (a, l, info, n - last, n, n * n), stream)
        elif how.blocking is None:
            calls = DeviceCalls(gpu, how.panel, l, info, n, batch, stream)
            calls.potrf_from(a, l, Block.diagonal(0, n))
        else:
            gpu.launch(kernels.triangle(how.panel.dtype, how.panel.order), batch * n, (a, l, n), stream)
            _by_blocks(gpu, how, (l, info), n, batch, stream, work)


def _by_blocks(
    gpu: Device, how: Plan, addresses: tuple[int, int], n: int, batch: int, stream: Any, given: int
) -> None:
    """Queue the factorization of matrices whose lower triangles are where their factors are to be."""
    assert how.blocking is not None, "it is done at once"
    assert not isinstance(how.panel, OnChip), "it is not cut"
    l, info = addresses
    together = batch if n <= ALONE and not how.hybrid else 1
    blocks = blocks_to_a_matrix(gpu, how, n, together)
    work = given or _counted(gpu, how, n, together, stream)
    for member in range(0, batch, together):
        own = l + member * n * n * ELEMENT_BYTES[how.panel.dtype], info + member * _INFO.itemsize
        if how.hybrid:
            room = host_block(gpu, how.blocking.nb, how.panel.dtype)
            blocked.factor(HybridCalls(gpu, how.panel, *own, n, 1, stream, block=room), n, how.blocking)
        else:
            calls = DeviceCalls(gpu, how.panel, *own, n, together, stream, blocks=blocks, work=work)
            blocked.factor(calls, n, how.blocking)


# Working it out takes the host as long as the launch itself.
@lru_cache(maxsize=256)
def _one_launch(gpu: Device, how: Plan, n: int, batch: int) -> tuple[Function, int, tuple[int, ...]]:
    """The kernel of whole matrices, its blocks of threads, and the last of its arguments."""
    assert isinstance(how.panel, FusedPanel), "it is one launch"
    rows = n - how.border_rows(n)
    blocks = blocks_to_a_matrix(gpu, how, rows, batch)
    sizes = rows, rows, n, n * n, 0, how.panel.tiles(rows), blocks, 1
    return gpu.load(fused_panel(how.panel.at(n, rows))), batch * blocks, sizes


def blocks_to_a_matrix(gpu: Device, how: Plan, n: int, batch: int) -> int:
    """Blocks of threads to a matrix of order n: its share, as far as there are tiles for them."""
    if not isinstance(how.panel, FusedPanel):
        return 1
    tiles = how.panel.tiles(n)
    share, enough = how.panel.resident * gpu.multiprocessors // batch, tiles * (tiles + 1) // 2 // _TASKS_OF_A_BLOCK
    return how.blocks or max(1, min(max(share, 1 + (tiles >= _TILES_OF_TWO)), enough))


def work_words(how: Plan, n: int, batch: int) -> int:
    """The 32-bit words of zeros that a factorization takes."""
    if not isinstance(how.panel, FusedPanel):
        return 0
    return (batch if how.blocking is None or n <= ALONE else 1) * how.panel.counts(n)


def _counted(gpu: Device, how: Plan, n: int, batch: int, stream: Any) -> int:
    """The address of words of zeros for fused panels; 0 if there are none.

    Those of the default stream are kept: who counts there leaves zeros to the next.
    """
    words = work_words(how, n, batch)
    if not words:
        return 0
    if stream is None:
        return _kept_zeros(gpu).address(gpu, words)
    made = _zeros(gpu, words, stream)
    memory.share(stream, made)
    return int(made.gpudata)


class _Zeros:
    """The most words of zeros that were asked for so far."""

    def __init__(self) -> None:
        self._array, self._words = None, 0

    def address(self, gpu: Device, words: int) -> int:
        array: Any = self._array
        if words > self._words:
            array = _zeros(gpu, words)
            self._array, self._words = array, words
        return int(array.gpudata)


def _zeros(gpu: Device, words: int, stream: Any = None) -> Any:
    made = memory.empty((words,), _INFO, "the counts of what is done of matrices")
    gpu.fill_words(int(made.gpudata), 0, words, stream)
    return made


@cache
def _kept_zeros(gpu: Device) -> _Zeros:
    return _Zeros()


def factor_host(a: NDArray[np.floating], upper: bool) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Factors and info of an array of the host, (batch, n, n), as arrays of the host; in slices that fit the GPU."""
    gpu, n = device(), a.shape[-1]
    l, info = aligned_empty(a.shape, a.dtype, f"an array of shape {a.shape}"), np.empty(len(a), np.int32)
    how = chosen(gpu, n, len(a), a.dtype.name, upper).plan
    if how.blocking is not None:
        cublas.prepare(side=how.blocking.ahead)
    for first, last in slices(len(a), n * n * a.itemsize + _INFO.itemsize):
        there = memory.to_device(a[first:last], f"{last - first:,} matrices of order {n:,}")
        status = memory.info_array(last - first, poisoned=False)
        address = int(there.gpudata)
        factor_at(gpu, how, address, address, int(status.gpudata), n, last - first)
        memory.to_host(there, out=l[first:last])
        memory.to_host(status, out=info[first:last])
    return l, info


@dataclass(frozen=True)
class Substitution(OnGpu):
    """Solving by canonical factors, lower or, if `upper`, upper ones, by cuBLAS's trsm: together to order `ALONE`.

    Larger ones are solved by one after the other.
    """

    n: int
    dtype: str
    upper: bool

    def launch(
        self, addresses: tuple[int, int, int], nrhs: int, batch: int, layout: Layout, stream: Any = None
    ) -> Any:
        """Queue it for factors, right-hand sides and room for solutions, which may be theirs, at these addresses.

        Returns
        -------
        GPUArray or None
            A workspace, 16 bytes to a matrix. On another stream than the default one it has to live until the work
            is done.
        """
        l, b, x = addresses
        blas, itemsize = cublas.Cublas(self.dtype, "col" if self.upper else "row"), ELEMENT_BYTES[self.dtype]
        apart = self.n**2 * itemsize, self.n * nrhs * itemsize
        self.copy(b, x, batch * apart[1], stream)
        sizes = self.n, nrhs, self.n
        if batch > 1 and self.n <= ALONE:
            room = workspace((2, batch), "uint64", f"the addresses of {batch:,} matrices", stream)
            factors = int(room.gpudata)
            solutions = factors + room.nbytes // 2
            for place, first, step in zip((factors, solutions), (l, x), apart, strict=True):
                self.gpu.launch(kernels.addresses(), batch, (place, first, step, batch), stream)
            for transposed in (False, True):
                blas.solve(factors, solutions, *sizes, transposed=transposed, batch=batch, stream=stream)
            return room
        for member in range(batch):
            factor, columns = l + member * apart[0], x + member * apart[1]
            for transposed in (False, True):
                blas.solve(factor, columns, *sizes, transposed=transposed, stream=stream)
        return None
