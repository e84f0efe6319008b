"""QR factorizations of matrices of a GPU that are larger than any kernel's of `kernelgen.MAX_N`, and what Q is for.

A block of threads factors a panel in its registers; what is right of it is multiplied by all reflectors of the panel
at once, I - V T^T V^T, by three products, for which V has its ones and zeros written out, and T is made by one
product, V^T V (Haidar, Dong, Luszczek, Tomov and Dongarra, "Batched matrix computations on hardware accelerators
based on GPUs", IJHPCA 2015).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from batchchol.algorithms.launching import OnGpu, workspace
from batchchol.backends.cuda import support
from batchchol.backends.cuda.bindings import cublas
from batchchol.backends.cuda.device import Device
from kernelgen import Layout
from kernelgen.emit.panels import lu_panel
from kernelgen.emit.panels import qr_panel as kernels
from kernelgen.emit.panels.panel import addresses as address_kernel
from kernelgen.targets import ELEMENT_BYTES

LARGEST = lu_panel.LARGEST
# The order above which a matrix fills a GPU by itself.
ALONE = 2048


@dataclass(frozen=True)
class Rectangles:
    """Matrices (batch, m, n) in rows at an address."""

    address: int
    m: int
    n: int

    def at(self, row: int, column: int, itemsize: int) -> int:
        """The address of an element of the first of them."""
        return self.address + (row * self.n + column) * itemsize


@dataclass(frozen=True)
class QrCalls:
    """What QR factorizations by panels are made of, on `batch` matrices; all is queued.

    `room` is the address of a workspace of `scalars` elements for as many columns as are multiplied at a time.
    """

    gpu: Device
    dtype: str
    factors: Rectangles
    batch: int
    tau: int
    columns: int
    room: int = 0
    stream: Any = None
    nb: int = field(default=0)

    def __post_init__(self) -> None:
        if not self.nb:
            object.__setattr__(self, "nb", lu_panel.widest(self.dtype, self.factors.m))

    @property
    def reflectors(self) -> int:
        """Reflectors of a matrix."""
        return min(self.factors.m, self.factors.n)

    @property
    def scalars(self) -> int:
        """Elements of the workspace of a matrix: V, V^T V and T, and two products with columns."""
        return self.factors.m * self.nb + 2 * self.nb**2 + 2 * self.nb * self.columns

    @cached_property
    def blas(self) -> Any:
        """cuBLAS's routines."""
        return cublas.Cublas(self.dtype, "row")

    def panels(self) -> Iterator[tuple[int, int]]:
        """The first column of each, and how many it has."""
        return ((at, min(self.nb, self.reflectors - at)) for at in range(0, self.reflectors, self.nb))

    def panel(self, at: int, width: int) -> None:
        """Factor a panel that begins at a diagonal element."""
        m, n = self.factors.m, self.factors.n
        panel = lu_panel.LuPanel(self.dtype, self.nb, m - at)
        self._launch(
            kernels.factor(panel), self.batch, self.factors.address, self.tau, at, width, m, n, self.reflectors
        )

    def gather(self, at: int, width: int) -> None:
        """Write out V of a panel's reflectors, and their T."""
        m, n = self.factors.m, self.factors.n
        pieces = -(-(m - at) * self.nb // (kernels.COPIERS * kernels.EACH))
        sizes = at, width, m, n, m * self.nb, pieces
        self._launch(
            kernels.vectors(self.dtype, self.nb), self.batch * pieces, self.factors.address, self._vectors, *sizes
        )
        v, square = (self._vectors, self.nb, m * self.nb), (self._products, self.nb, self.nb**2)
        self.blas.product(
            square, v, v, (self.nb, self.nb, m - at), transposed=True, batch=self.batch, stream=self.stream
        )
        arguments = self._products, self.tau, self._triangles, at, width, self.reflectors
        self._launch(kernels.triangles(self.dtype, self.nb), self.batch, *arguments)

    def apply(self, target: Rectangles, at: int, column: int, *, transposed: bool) -> None:
        """Multiply rows from `at` on of columns from `column` on by the gathered reflectors, or by the transpose."""
        rows, columns = self.factors.m - at, target.n - column
        if not columns:
            return
        together: dict[str, Any] = {"batch": self.batch, "stream": self.stream}
        c = target.at(at, column, self._itemsize), target.n, target.m * target.n
        v, t = (self._vectors, self.nb, self.factors.m * self.nb), (self._triangles, self.nb, self.nb**2)
        apart = self.nb * self.columns
        w, tw = (self._beside, columns, apart), (self._beside + self.batch * apart * self._itemsize, columns, apart)
        self.blas.product(w, v, c, (self.nb, columns, rows), transposed=True, **together)
        self.blas.product(tw, t, w, (self.nb, columns, self.nb), transposed=transposed, **together)
        self.blas.product(c, v, tw, (rows, columns, self.nb), subtracts=True, **together)

    def identities(self, target: Rectangles) -> None:
        """Write columns of identities."""
        pieces = -(-target.m * target.n // (kernels.COPIERS * kernels.EACH))
        sizes = target.m, target.n, pieces
        self._launch(kernels.identities(self.dtype), self.batch * pieces, target.address, *sizes)

    def _launch(self, source: Any, items: int, *arguments: int) -> None:
        self.gpu.launch(source, items, arguments, self.stream)

    @property
    def _itemsize(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def _vectors(self) -> int:
        return self.room

    @property
    def _products(self) -> int:
        return self._vectors + self.batch * self.factors.m * self.nb * self._itemsize

    @property
    def _triangles(self) -> int:
        return self._products + self.batch * self.nb**2 * self._itemsize

    @property
    def _beside(self) -> int:
        return self._triangles + self.batch * self.nb**2 * self._itemsize


def factor(calls: QrCalls) -> None:
    """Factor matrices in place."""
    for at, width in calls.panels():
        calls.panel(at, width)
        if at + width < calls.factors.n:
            calls.gather(at, width)
            calls.apply(calls.factors, at, at + width, transposed=True)


def generate(calls: QrCalls, q: Rectangles) -> None:
    """Write the first columns of Q."""
    calls.identities(q)
    for at, width in reversed(list(calls.panels())):
        calls.gather(at, width)
        calls.apply(q, at, at, transposed=False)


def project(calls: QrCalls, x: Rectangles) -> None:
    """Multiply matrices by Q^T, in place."""
    for at, width in calls.panels():
        calls.gather(at, width)
        calls.apply(x, at, 0, transposed=True)


@dataclass(frozen=True)
class Reflections(OnGpu):
    """QR factorizations of canonical arrays in rows, or what is made of them, called as a kernel of an operation."""

    op: str
    m: int
    n: int
    dtype: str

    def launch(self, addresses: Sequence[int], nrhs: int, batch: int, layout: Layout, stream: Any = None) -> Any:
        """Queue it for the arguments of the operation.

        Returns
        -------
        tuple of GPUArray
            Workspaces. On another stream than the default one they have to live until the work is done.
        """
        cublas.prepare()
        with self.gpu.queueing():
            return getattr(self, f"_{self.op}")(addresses, nrhs, batch, stream)

    def _geqrf(self, addresses: Sequence[int], nrhs: int, batch: int, stream: Any) -> Any:
        a, qr, tau = addresses
        self._copy(a, qr, self.n, batch, stream)
        calls, room = self._calls(qr, tau, self.n, batch, stream)
        factor(calls)
        return room

    def _orgqr(self, addresses: Sequence[int], nrhs: int, batch: int, stream: Any) -> Any:
        a, tau, q = addresses
        kept = None
        if a == q:
            kept = workspace((batch, self.m, self.n), self.dtype, f"the reflectors of {batch:,} matrices", stream)
            a = int(kept.gpudata)
            self._copy(q, a, self.n, batch, stream)
        calls, room = self._calls(a, tau, self.n, batch, stream)
        generate(calls, Rectangles(q, self.m, self.n))
        return kept, room

    def _ormqr(self, addresses: Sequence[int], nrhs: int, batch: int, stream: Any) -> Any:
        a, tau, b, x = addresses
        self._copy(b, x, nrhs, batch, stream)
        calls, room = self._calls(a, tau, nrhs, batch, stream)
        project(calls, Rectangles(x, self.m, nrhs))
        return room

    def _gels(self, addresses: Sequence[int], nrhs: int, batch: int, stream: Any) -> Any:
        a, b, x, info = addresses
        m, n = self.m, self.n
        factors, tau, y = (
            workspace((batch, *sides), self.dtype, f"what becomes of {batch:,} matrices", stream)
            for sides in ((m, n), (n,), (m, nrhs))
        )
        qr, product = int(factors.gpudata), int(y.gpudata)
        made = self._geqrf((a, qr, int(tau.gpudata)), 0, batch, stream)
        self.gpu.launch(kernels.zeros(self.dtype), batch, (qr, info, m, n), stream)
        if not nrhs:
            return factors, tau, made
        used = self._ormqr((qr, int(tau.gpudata), b, product), nrhs, batch, stream)
        solved = self._substitute(qr, product, nrhs, batch, stream)
        support.part(self.gpu, product, x, (m, nrhs), (n, nrhs), batch, self.dtype, stream=stream)
        return factors, tau, y, made, used, solved

    def _substitute(self, r: int, y: int, nrhs: int, batch: int, stream: Any) -> Any:
        """The solutions of R x = y in place of the first rows of y (batch, m, nrhs)."""
        blas, itemsize = cublas.Cublas(self.dtype, "row"), ELEMENT_BYTES[self.dtype]
        apart = self.m * self.n * itemsize, self.m * nrhs * itemsize
        sizes = self.n, nrhs, self.n
        if batch == 1 or self.n > ALONE:
            for member in range(batch):
                places = r + member * apart[0], y + member * apart[1]
                blas.solve(*places, *sizes, upper=True, stream=stream)
            return None
        room = workspace((2, batch), "uint64", f"the addresses of {batch:,} matrices", stream)
        tables = int(room.gpudata), int(room.gpudata) + room.nbytes // 2
        for table, first, step in zip(tables, (r, y), apart, strict=True):
            self.gpu.launch(address_kernel(), batch, (table, first, step, batch), stream)
        blas.solve(*tables, *sizes, upper=True, batch=batch, stream=stream)
        return room

    def _copy(self, source: int, target: int, columns: int, batch: int, stream: Any) -> None:
        self.copy(source, target, batch * self.m * columns * ELEMENT_BYTES[self.dtype], stream)

    def _calls(self, factors: int, tau: int, columns: int, batch: int, stream: Any) -> tuple[QrCalls, Any]:
        given = self.gpu, self.dtype, Rectangles(factors, self.m, self.n), batch, tau, columns
        scalars = batch * QrCalls(*given).scalars
        room = workspace((scalars,), self.dtype, f"reflectors of {batch:,} matrices", stream)
        return QrCalls(*given, int(room.gpudata), stream), room
