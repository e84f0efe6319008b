"""CUDA sources of kernels for panels of large matrices: diagonal tiles, the rows below them, copies of triangles.

Their tiles are parts of canonical matrices, anywhere in them, of an order that is known at the launch. A matrix in
rows whose upper triangle is factored is one in columns whose lower triangle is: there is no third case.

The fused kernel of a tile is that of Haidar, Abdelfattah, Tomov and Dongarra ("High-performance Cholesky
factorization for GPU-only execution", GPGPU 2017), but right looking: a whole tile fits into the shared memory of
today's GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from kernelgen.emit.source import SCALARS, KernelSource, Launch, render
from kernelgen.emit.thread import undefine_macros
from kernelgen.gpu import MAX_BLOCK_THREADS, MAX_SHARED_BYTES, PIECE_BYTES, WARP
from kernelgen.refusals import SpecError, whole
from kernelgen.targets import ELEMENT_BYTES

ORDERS = ("row", "col")
# Elements of a side of the squares in which a thread updates.
_SIDE = 4
# Shared memory that the kernel of a tile declares by itself at most: reciprocals, and where it failed.
_DECLARED = 32 * 8 + PIECE_BYTES
# Threads that copy a row of a triangle.
_COPYING = 128


@dataclass(frozen=True)
class Panel:
    """How the tiles of panels are worked on.

    Attributes
    ----------
    dtype : {"float32", "float64"}
    order : {"row", "col"}
        Which elements of the matrices are neighbours.
    nb : int
        Tiles have at most this order, a multiple of `ib`.
    ib : int
        Columns that are factored, or solved for, before the rest of a tile is updated by them: 4, 8, 16 or 32.
    rows : int
        Rows below a tile that a block of threads solves for, a multiple of 4.
    threads, row_threads : int
        Of a block that factors a tile, and of one that solves for rows below it; pairs of warps. One warp factors a
        tile's next diagonal block beside the others' updates.

    Raises
    ------
    SpecError
        If a value is none of these, or the shared memory of a block does not suffice.
    """

    dtype: str
    order: str
    nb: int
    ib: int = 16
    rows: int = 32
    threads: int = 256
    row_threads: int = 256
    family: ClassVar[str] = "panel"

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_BYTES or self.order not in ORDERS:
            raise SpecError(
                f"dtype={self.dtype!r}, order={self.order!r}: expected one of {list(ELEMENT_BYTES)}, {ORDERS}"
            )
        if self.ib not in (4, 8, 16, 32):
            raise SpecError(f"ib={self.ib!r}: expected 4, 8, 16 or 32")
        for name, unit, most in (
            ("nb", self.ib, 1 << 10),
            ("rows", _SIDE, 1 << 10),
            ("threads", 2 * WARP, MAX_BLOCK_THREADS),
            ("row_threads", 2 * WARP, MAX_BLOCK_THREADS),
        ):
            value = getattr(self, name)
            if (whole(value) or 0) < 1 or value % unit or value > most:
                raise SpecError(f"{name}={value!r}: expected a multiple of {unit} up to {most}")
        if self.potf2_bytes > MAX_SHARED_BYTES - _DECLARED:
            raise SpecError(
                f"nb={self.nb}: a {self.dtype} tile of that order takes {self.potf2_bytes:,} bytes of shared memory, "
                f"of {MAX_SHARED_BYTES:,}: use at most nb={largest_tile(self.dtype, self.ib)}"
            )

    @property
    def _pitch(self) -> int:
        return self.nb + PIECE_BYTES // ELEMENT_BYTES[self.dtype]

    @property
    def potf2_bytes(self) -> int:
        """Dynamic shared memory of a block that factors a tile."""
        return (self.nb + self.ib) * self._pitch * ELEMENT_BYTES[self.dtype]

    @property
    def trsm_bytes(self) -> int:
        """Dynamic shared memory of a block that solves for rows below a tile."""
        itemsize = ELEMENT_BYTES[self.dtype]
        row_pitch = self.rows + PIECE_BYTES // itemsize
        return ((self.nb + self.rows) * self._pitch + self.ib * row_pitch) * itemsize


@lru_cache(maxsize=256)
def largest_tile(dtype: str, ib: int = 16) -> int:
    """The largest order, a multiple of 16, of a tile that `potf2` factors in shared memory."""
    itemsize = ELEMENT_BYTES[dtype]
    pad = PIECE_BYTES // itemsize
    # What the kernel declares by itself comes on top.
    fits = (nb for nb in range(16, 1 << 10, 16) if (nb + ib) * (nb + pad) * itemsize <= MAX_SHARED_BYTES - _DECLARED)
    return max(fits)


@lru_cache(maxsize=256)
def potf2(panel: Panel) -> KernelSource:
    """The kernel of diagonal tiles; an item is a matrix. The end of the text describes its arguments."""
    return _source("potf2", panel, Launch(panel.threads, 1, panel.potf2_bytes, cache="shared"))


@lru_cache(maxsize=256)
def trsm(panel: Panel) -> KernelSource:
    """The kernel of the rows below a tile; an item is `panel.rows` of them in one matrix.

    Raises
    ------
    SpecError
        If the shared memory of a block does not suffice for a tile and the rows.
    """
    if panel.trsm_bytes > MAX_SHARED_BYTES:
        raise SpecError(
            f"rows={panel.rows}: beside a {panel.dtype} tile of order {panel.nb} they take {panel.trsm_bytes:,} "
            f"bytes of shared memory, of {MAX_SHARED_BYTES:,}: use fewer"
        )
    return _source("trsm", panel, Launch(panel.row_threads, 1, panel.trsm_bytes, cache="shared"))


@lru_cache(maxsize=8)
def triangle(dtype: str, order: str) -> KernelSource:
    """The kernel that copies lower triangles, and writes zeros above; an item is a row or column of a matrix."""
    return _source("triangle", Panel(dtype, order, 16, threads=_COPYING), Launch(_COPYING, 1))


@lru_cache(maxsize=1)
def addresses() -> KernelSource:
    """The kernel that writes the addresses of matrices; an item is one of them."""
    launch = Launch(_COPYING, _COPYING)
    entry = "addresses_kernel"
    return KernelSource(render("panel/addresses.cu.jinja", entry=entry, launch=launch), entry, 1, (), launch)


def _source(name: str, panel: Panel, launch: Launch) -> KernelSource:
    letter = {"float32": "s", "float64": "d"}[panel.dtype]
    sizes = "" if name == "triangle" else f"_nb{panel.nb}_ib{panel.ib}_t{launch.threads}"
    rows = f"_r{panel.rows}" if name == "trsm" else ""
    entry = f"{letter}{name}_{panel.order}{sizes}{rows}"
    text = render(
        f"panel/{name}.cu.jinja",
        entry=entry,
        launch=launch,
        dtype=panel.dtype,
        scalar=SCALARS[panel.dtype],
        order=panel.nb,
        order_of=panel.order,
        inner=panel.ib,
        rows=panel.rows,
        lines=4,
        schedule=panel,
        math="ieee",
    )
    return KernelSource(undefine_macros(text), entry, 1, (), launch)
