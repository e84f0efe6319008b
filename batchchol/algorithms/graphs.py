"""Blocked factorizations as CUDA graphs: all their launches, look-ahead's on both streams, queued by one call."""

from __future__ import annotations

import numpy as np

from batchchol.algorithms.large import factor_at, work_words
from batchchol.algorithms.plans import Plan
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.bindings import cublas
from batchchol.backends.cuda.bindings.cublas import cupy_cuda
from batchchol.backends.cuda.device import Device


class FactorizationGraph:
    """A factorization of canonical matrices at an address into those at another, captured from a stream once.

    Raises
    ------
    ValueError
        If the host takes part in it: what it does is no part of a graph.
    BatchcholError
        If CuPy cannot be imported; says how to get it.
    OutOfMemory
        If its workspace, or cuBLAS's, would not fit.
    """

    def __init__(self, gpu: Device, how: Plan, a: int, l: int, info: int, n: int, batch: int) -> None:
        if how.hybrid:
            raise ValueError(f"how: got {how.name!r}, expected a plan that the GPU does by itself")
        if how.blocking is not None:
            cublas.prepare(side=how.blocking.ahead)
        self._gpu = gpu
        # What is loaded, and memory that is looked for, at the first time is no part of the graph.
        factor_at(gpu, how, a, l, info, n, batch)
        words = max(work_words(how, n, batch), 1)
        self._work = memory.empty((words,), np.int32, "the counts of what is done of a graph's matrices")
        work = int(self._work.gpudata)
        # A launch leaves zeros to the next.
        gpu.fill_words(work, 0, words)
        gpu.synchronize()
        with gpu.current("capturing a factorization"):
            self._stream = cupy_cuda().Stream(non_blocking=True)
            self._stream.begin_capture()
            try:
                factor_at(gpu, how, a, l, info, n, batch, self._stream, work)
            finally:
                self._graph = self._stream.end_capture()

    def launch(self) -> None:
        """Queue it on the default stream; returns before it is done."""
        with self._gpu.at_hand():
            self._graph.launch(cupy_cuda().Stream.null)
