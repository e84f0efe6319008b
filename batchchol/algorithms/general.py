"""LU factors of, and solutions by, general matrices of a GPU that are larger than any kernel's of `kernelgen.MAX_N`.

Panels are nested: the columns of a matrix are halved down to panels that a block of threads factors in its registers
(Toledo, "Locality of reference in LU decomposition with partial pivoting", SIAM J. Matrix Anal. Appl. 18, 1997;
Haidar, Dong, Luszczek, Tomov and Dongarra, "Batched matrix computations on hardware accelerators based on GPUs",
IJHPCA 2015). After each of them rows are interchanged in all other columns at once, and what is right of it is
updated by products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

from batchchol.algorithms.blocked import halved
from batchchol.algorithms.launching import OnGpu, workspace
from batchchol.backends.cuda.bindings import cublas
from batchchol.backends.cuda.device import Device
from batchchol.batches.layouts import array_shape
from kernelgen import Layout
from kernelgen.emit.panels import lu_panel as kernels
from kernelgen.emit.panels.panel import addresses as address_kernel
from kernelgen.targets import ELEMENT_BYTES

LARGEST = kernels.LARGEST
# The order above which a matrix fills a GPU by itself.
_ALONE = 2048


@dataclass(frozen=True)
class LuCalls:
    """What LU factorizations by panels are made of, on `batch` matrices in rows at an address; all is queued.

    `pivots` and `info` are the addresses of n and of one int32 for each matrix.
    """

    gpu: Device
    dtype: str
    n: int
    batch: int
    matrices: int
    pivots: int
    info: int
    stream: Any = None

    @cached_property
    def nb(self) -> int:
        """Columns of a panel."""
        return kernels.widest(self.dtype, self.n)

    @cached_property
    def blas(self) -> cublas.Cublas:
        """cuBLAS's routines."""
        return cublas.Cublas(self.dtype, "row")

    def panel(self, at: int, width: int) -> None:
        """Factor a panel that begins at a diagonal element, and interchange rows in all other columns."""
        panel = kernels.LuPanel(self.dtype, self.nb, self.n - at)
        self._launch(kernels.factor(panel), self.batch, self.matrices, self.pivots, self.info, at, width, self.n)
        self.interchange(self.matrices, self.n, at, width, kept=(at, width))

    def interchange(self, address: int, columns: int, at: int, width: int, kept: tuple[int, int] = (0, 0)) -> None:
        """Interchange rows by the pivots from step `at` on, in all `columns` of an array but those `kept`."""
        pieces = -(-(columns - kept[1]) // kernels.COLUMNS)
        sizes = at, width, columns, *kept, self.n * columns, self.n, pieces
        self._launch(kernels.swaps(self.dtype, self.nb), self.batch * pieces, address, self.pivots, *sizes)

    def solve(self, at: int, size: int, column: int, columns: int) -> None:
        """Solve by the unit lower triangle at a diagonal element, in columns beside it from `column` on."""
        if size > self.nb:
            first = halved(size, self.nb)
            self.solve(at, first, column, columns)
            self.update(at + first, size - first, column, columns, at, first)
            self.solve(at + first, size - first, column, columns)
            return
        pieces = -(-columns // kernels.COLUMNS)
        sizes = at, size, column, columns, self.n, pieces
        self._launch(kernels.solve(self.dtype, self.nb), self.batch * pieces, self.matrices, *sizes)

    def update(self, row: int, rows: int, column: int, columns: int, at: int, inner: int) -> None:
        """Subtract from a block the product of columns from `at` on beside it and of rows from `at` on above it."""
        places = self._at(row, column), self._at(row, at), self._at(at, column)
        sizes = rows, columns, inner, self.n
        self.blas.gemm(*places, *sizes, batch=self.batch, apart=self.n**2, transposed=False, stream=self.stream)

    def _launch(self, source: Any, items: int, *arguments: int) -> None:
        self.gpu.launch(source, items, arguments, self.stream)

    def _at(self, row: int, column: int) -> int:
        return self.matrices + (row * self.n + column) * ELEMENT_BYTES[self.dtype]


def factor(calls: LuCalls, at: int, width: int) -> None:
    """Factor the columns from `at` on, from the diagonal down, recursively by halves."""
    if width <= calls.nb:
        calls.panel(at, width)
        return
    first = halved(width, calls.nb)
    right = at + first, width - first
    factor(calls, at, first)
    calls.solve(at, first, *right)
    calls.update(at + first, calls.n - at - first, *right, at, first)
    factor(calls, *right)


@dataclass(frozen=True)
class LuFactorization(OnGpu):
    """LU factorizations of canonical arrays in rows, called as a kernel of "getrf"."""

    n: int
    dtype: str

    def launch(self, addresses: Sequence[int], nrhs: int, batch: int, layout: Layout, stream: Any = None) -> None:
        """Queue it for matrices, room for factors, which may be theirs, for pivots and for the info."""
        a, lu, pivots, info = addresses
        cublas.prepare()
        size = self.n**2 * ELEMENT_BYTES[self.dtype]
        self.copy(a, lu, batch * size, stream)
        together = batch if self.n <= _ALONE else 1
        with self.gpu.queueing():
            for m in range(0, batch, together):
                places = lu + m * size, pivots + m * self.n * 4, info + m * 4
                factor(LuCalls(self.gpu, self.dtype, self.n, together, *places, stream), 0, self.n)


@dataclass(frozen=True)
class LuSolution(OnGpu):
    """Solutions by LU factors of canonical arrays in rows, called as a kernel of "getrs"; by cuBLAS's trsm."""

    n: int
    dtype: str

    def launch(self, addresses: Sequence[int], nrhs: int, batch: int, layout: Layout, stream: Any = None) -> Any:
        """Queue it for factors, pivots, right-hand sides and room for solutions, which may be theirs.

        Returns
        -------
        GPUArray or None
            A workspace, 16 bytes to a matrix. On another stream than the default one it has to live until the work
            is done.
        """
        lu, pivots, b, x = addresses
        itemsize = ELEMENT_BYTES[self.dtype]
        apart = self.n**2 * itemsize, self.n * nrhs * itemsize
        self.copy(b, x, batch * apart[1], stream)
        calls = LuCalls(self.gpu, self.dtype, self.n, batch, lu, pivots, 0, stream)
        for at in range(0, self.n, calls.nb):
            calls.interchange(x, nrhs, at, min(calls.nb, self.n - at))
        sizes, triangles = (self.n, nrhs, self.n), ({"unit": True}, {"upper": True})
        if batch > 1 and self.n <= _ALONE:
            room = workspace((2, batch), "uint64", f"the addresses of {batch:,} matrices", stream)
            factors = int(room.gpudata)
            solutions = factors + room.nbytes // 2
            for place, first, step in zip((factors, solutions), (lu, x), apart, strict=True):
                self.gpu.launch(address_kernel(), batch, (place, first, step, batch), stream)
            for triangle in triangles:
                calls.blas.solve(factors, solutions, *sizes, **triangle, batch=batch, stream=stream)
            return room
        for member in range(batch):
            for triangle in triangles:
                calls.blas.solve(lu + member * apart[0], x + member * apart[1], *sizes, **triangle, stream=stream)
        return None


class Launched(Protocol):
    """What is queued for arrays at addresses, as a kernel of a GPU is."""

    def launch(self, addresses: Sequence[int], nrhs: int, batch: int, layout: Layout, stream: Any = None) -> Any:
        """Queue it; a workspace, if there is one."""


@dataclass(frozen=True)
class LuFactorThenSolve(OnGpu):
    """A factorization and solutions by it, called as a kernel of "gesv"; the factors are in a workspace."""

    n: int
    dtype: str
    factor: Launched
    solve: Launched

    @classmethod
    def by_panels(cls, n: int, dtype: str) -> Self:
        """A factorization and a solution for orders that no kernel has."""
        return cls(n, dtype, LuFactorization(n, dtype), LuSolution(n, dtype))

    def launch(self, addresses: Sequence[int], nrhs: int, batch: int, layout: Layout, stream: Any = None) -> Any:
        """Queue it for matrices, right-hand sides, room for solutions, which may be theirs, and for the info.

        Returns
        -------
        tuple of GPUArray
            Workspaces. On another stream than the default one they have to live until the work is done.
        """
        a, b, x, info = addresses
        n, those = self.n, f"of {batch:,} matrices of order {self.n:,}"
        lu = workspace(array_shape(n, batch, layout), self.dtype, f"the factors {those}", stream)
        pivots = workspace((batch, n), "int32", f"the pivots {those}", stream)
        factors = int(lu.gpudata), int(pivots.gpudata)
        self.factor.launch((a, *factors, info), 0, batch, layout, stream)
        return lu, pivots, self.solve.launch((*factors, b, x), nrhs, batch, layout, stream)
