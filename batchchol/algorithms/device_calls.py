"""The level-3 calls on canonical matrices of a GPU: generated kernels for tiles and panels, cuBLAS for updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Self

from batchchol.algorithms.blocked import halved
from batchchol.algorithms.level3 import Block
from batchchol.backends.cuda.bindings.cublas import Cublas
from batchchol.backends.cuda.device import Device, stream_address
from kernelgen.emit.panels import panel as kernels
from kernelgen.emit.panels.fused_panel import FusedPanel, fused_panel
from kernelgen.emit.panels.panel import Panel
from kernelgen.targets import ELEMENT_BYTES


@dataclass(frozen=True)
class DeviceCalls:
    """`Level3` on `batch` matrices of order `n` at an address, in the order of the panel; all is queued on a stream.

    `info` is the address of an int32 for each matrix. One matrix is updated by syrk, from order `least_halved` on by
    that of its halves. Several are updated by products of whole blocks on the diagonal (Haidar, Dong, Luszczek, Tomov
    and Dongarra, "Batched matrix computations on hardware accelerators based on GPUs", IJHPCA 2015): cuBLAS has no
    batched syrk.

    Fused panels have `blocks` blocks of threads to a matrix, and count in words at the address `work`, all 0.
    """

    gpu: Device
    how: Panel | FusedPanel
    matrices: int
    info: int
    n: int
    batch: int
    stream: Any = None
    side: bool = False
    blocks: int = 1
    work: int = 0
    least_halved: int = 4096

    @cached_property
    def blas(self) -> Cublas:
        """cuBLAS's routines."""
        return Cublas(self.how.dtype, self.how.order, side=self.side)

    def panel(self, p: Block) -> None:
        self.panel_from(self._at(p), p)

    def panel_from(self, source: int, p: Block, *, zeros: bool = False) -> None:
        """`panel` of matrices that are read from another array, at an address; with `zeros` above their diagonals."""
        fused = self._fused
        sizes = p.rows, p.columns, self.n, self.n**2, p.column, fused.tiles(p.rows), self.blocks, int(zeros)
        arguments = source, self._at(p), self.info, self.work, *sizes
        self.gpu.launch(fused_panel(fused), self.batch * self.blocks, arguments, self.stream)

    def potrf(self, c: Block) -> None:
        tile = self._at(c)
        self.potrf_from(tile, tile, c)

    def potrf_from(self, source: int, tile: int, c: Block) -> None:
        """`potrf` of tiles that are read from another array of matrices like these, at an address."""
        arguments = source, tile, self.info, c.rows, self.n, self.n**2, c.row
        self.gpu.launch(kernels.potf2(self._tiles), self.batch, arguments, self.stream)

    def trsm(self, l: Block, b: Block) -> None:
        pieces = -(-b.rows // self._tiles.rows)
        arguments = self._at(l), self._at(b), l.rows, b.rows, self.n, self.n**2, pieces
        self.gpu.launch(kernels.trsm(self._tiles), self.batch * pieces, arguments, self.stream)

    def syrk(self, c: Block, a: Block) -> None:
        if self.batch == 1:
            self._syrk(c, a)
            return
        nb = self.how.nb
        for at in range(0, c.rows, nb):
            rows, columns = c.rows - at, min(nb, c.rows - at)
            left = a.part(at, 0, rows, a.columns)
            self.gemm(c.part(at, at, rows, columns), left, left._replace(rows=columns))

    def _syrk(self, c: Block, a: Block) -> None:
        """By halves: what is below the diagonal of large ones is a product, of which cuBLAS does more in a second."""
        if c.rows < self.least_halved:
            self.blas.syrk(self._at(c), self._at(a), c.rows, a.columns, self.n, stream=self.stream)
            return
        first = halved(c.rows, self.how.nb)
        last = c.rows - first
        above, below = a.part(0, 0, first, a.columns), a.part(first, 0, last, a.columns)
        self._syrk(c.part(0, 0, first, first), above)
        self.gemm(c.part(first, 0, last, first), below, above)
        self._syrk(c.part(first, first, last, last), below)

    def gemm(self, c: Block, a: Block, b: Block) -> None:
        addresses = self._at(c), self._at(a), self._at(b)
        sizes = c.rows, c.columns, a.columns, self.n
        self.blas.gemm(*addresses, *sizes, batch=self.batch, apart=self.n**2, stream=self.stream)

    def beside(self) -> Self:
        return replace(self, stream=side_stream(self.gpu), side=True)

    def wait_for(self, other: Self) -> None:
        first, then = (0 if each.stream is None else stream_address(each.stream) for each in (other, self))
        with self.gpu.at_hand():
            self.gpu.driver.wait_for(first, then)

    @property
    def _tiles(self) -> Panel:
        assert isinstance(self.how, Panel), "panels are fused: there are no tiles"
        return self.how

    @property
    def _fused(self) -> FusedPanel:
        assert isinstance(self.how, FusedPanel), "there are tiles: panels are not fused"
        return self.how.at(self.n)

    def _at(self, block: Block) -> int:
        row, column = (self.n, 1) if self.how.order == "row" else (1, self.n)
        return self.matrices + (block.row * row + block.column * column) * ELEMENT_BYTES[self.how.dtype]


@cache
def side_stream(gpu: Device) -> int:
    """The address of the stream for work beside other work, which has priority where only one has room."""
    with gpu.at_hand("making a stream"):
        return gpu.driver.urgent_stream()
