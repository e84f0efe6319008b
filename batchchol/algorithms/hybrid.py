"""Hybrid factorizations: the host's LAPACK factors blocks on the diagonal, beside the GPU's updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.algorithms.device_calls import DeviceCalls, side_stream
from batchchol.algorithms.level3 import Block
from batchchol.backends import lapack
from batchchol.backends.cuda.bindings.host_block import HostBlock
from batchchol.backends.cuda.device import stream_address
from batchchol.parallel import available_threads


@dataclass(frozen=True)
class HybridCalls(DeviceCalls):
    """`DeviceCalls` of one matrix, for left-looking factorizations whose tile is a panel.

    A block on the diagonal that is updated is copied to the host, factored there and copied back while the GPU
    updates the rows below it, which cuBLAS then solves for: MAGMA's order of work (Tomov, Nath, Ltaief and Dongarra,
    "Dense linear algebra solvers for multicore with GPU accelerators", IPDPSW 2010). The host waits for each block.
    """

    block: HostBlock = field(kw_only=True)

    def syrk(self, c: Block, a: Block) -> None:
        super().syrk(c, a)
        # Copies wait for this, and not for the updates of other rows, which follow.
        self._order(self._own, self._copies)

    def potrf(self, c: Block) -> None:
        at, first = self._at(c), c.row == 0
        if first:
            self._order(self._own, self._copies)
        with self.gpu.at_hand():
            failed = self._factored(at, c.rows)
            self.block.put(at, c.rows, self.n, self._copies)
            if first or failed:
                self._set_info(c.row + failed if failed else 0, first=first)
        self._order(self._copies, self._own)

    def trsm(self, l: Block, b: Block) -> None:
        self.blas.trsm(self._at(l), self._at(b), b.rows, l.rows, self.n, stream=self.stream)

    def _factored(self, at: int, order: int) -> int:
        """Have the factor of the block at an address in its room on the host; the column that fails, from 1, or 0."""
        upper, threads = self.how.order == "col", available_threads()
        found = self.block.fetch(at, order, self.n, self._copies)
        failed = lapack.potrf_in_place(found, upper, threads)
        if failed:
            _complete(self.block.fetch(at, order, self.n, self._copies), upper, threads)
        return failed

    def _set_info(self, info: int, *, first: bool) -> None:
        """Write the info of the first block, or one that is not 0; of several the first one stays."""
        if first or not self.block.failed:
            self.gpu.fill_words(self.info, info, 1, self._copies)
        self.block.failed = bool(info)

    def _order(self, first: int, then: int) -> None:
        with self.gpu.at_hand():
            self.gpu.driver.wait_for(first, then)

    @property
    def _own(self) -> int:
        return 0 if self.stream is None else stream_address(self.stream)

    @property
    def _copies(self) -> int:
        return side_stream(self.gpu)


def _complete(a: NDArray[Any], upper: bool, threads: int) -> None:
    """Put the factor of a matrix that fails in its place: whole columns to the one that fails, then an identity's."""
    factors, info = lapack.potrf(a[np.newaxis], upper, threads)
    k = int(info[0]) - 1
    factors[0, k:, k:] = np.eye(len(a) - k)
    a[...] = factors[0]
