"""The CUDA source of whole panels in one launch: tiles that blocks of threads take in turn.

A panel is the first columns of a matrix; all of them are a factorization. Its tiles are left looking: each is written
once. The update in steps of `lb` columns, with the next ones on their way into registers, is that of Haidar,
Abdelfattah, Tomov and Dongarra ("High-performance Cholesky factorization for GPU-only execution", GPGPU 2017); that
tiles are tasks which wait for others is from Kurzak, Ltaief, Dongarra and Badia ("Scheduling dense linear algebra
operations on multicore processors", CCPE 2010).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from kernelgen.emit.panels.panel import ORDERS
from kernelgen.emit.source import SCALARS, KernelSource, Launch, render
from kernelgen.emit.thread import undefine_macros
from kernelgen.gpu import MAX_SHARED_BYTES, PIECE_BYTES, WARP
from kernelgen.refusals import SpecError
from kernelgen.schedules.axes import UPDATES
from kernelgen.targets import ELEMENT_BYTES

# The most shared memory that the kernel itself declares.
_DECLARED = (32 + 128) * 8 + 4 * PIECE_BYTES
_DOWN = 16
# Elements between rows of what tiles are updated by; rows and columns of what tensor cores do at once.
_PAD, _UNIT = 4, 16


@dataclass(frozen=True)
class FusedPanel:
    """How panels are worked on in one launch.

    Attributes
    ----------
    dtype : {"float32", "float64"}
    order : {"row", "col"}
        Which elements of the matrices are neighbours.
    nb : int
        The order of tiles: a multiple of 16 from 32 to 128.
    ib : int
        Columns of a tile that are factored, or solved for, before its rest is updated by them: 4, 8, 16 or 32.
    lb : int
        Columns that a tile is updated by at a time: 8, 16 or 32.
    threads : int
        Of a block: 64, 96, 128, 160, 192, 256 or 512; pairs of warps unless tensor cores update.
    resident : int
        Blocks that a multiprocessor is to hold at once, 1 to 6: more of them get fewer registers each.
    update : {"fma", "tensor"}
        What updates tiles: multiply-adds, or tensor cores. In float32 these make three products of 11 bits for one
        of 24, whose error is a part of what the sums of matrices of such orders have anyway.
    depth : int
        Columns that tensor cores take at once in float64: 4, 8 or 16, no more than `lb` and `ib`.
    leading : int
        Of matrices in rows that begin at no whole 16 bytes, the elements from one row to the next: these are moved by
        elements, and the kernel is for them alone. 0 for all others.
    exact : bool
        Whether every matrix has whole tiles.
    timed : bool
        Whether the kernel writes down how long each phase of a task takes: for finding out, it takes longer.

    Raises
    ------
    SpecError
        If a value is none of these, a block has too little shared memory, or threads have no columns or rows of a
        tile each, or none of what is fetched.
    """

    dtype: str
    order: str
    nb: int = 64
    ib: int = 16
    lb: int = 16
    threads: int = 256
    resident: int = 1
    update: str = "fma"
    depth: int = 4
    timed: bool = False
    leading: int = 0
    exact: bool = False
    family: ClassVar[str] = "panel"

    def __post_init__(self) -> None:
        for name, values in (
            ("dtype", tuple(ELEMENT_BYTES)),
            ("order", ORDERS),
            ("nb", tuple(range(32, 129, 16))),
            ("ib", (4, 8, 16, 32)),
            ("lb", (8, 16, 32)),
            ("threads", (64, 96, 128, 160, 192, 256, 512)),
            ("resident", (1, 2, 3, 4, 5, 6)),
            ("update", UPDATES),
            ("depth", (4, 8, 16)),
        ):
            if (value := getattr(self, name)) not in values:
                raise SpecError(f"{name}={value!r}: expected one of {values}")
        squares = self.threads % (2 * WARP) == 0 and self.nb % (self.threads // _DOWN) == 0
        shared = self.warps_down if self.update == "tensor" else squares
        if not shared or self.nb % self.lb or self._pieces % self.threads:
            raise SpecError(
                f"threads={self.threads}: tiles of order {self.nb} in steps of {self.lb} columns cannot be shared "
                "among these threads"
            )
        if self.leading and self.order != "row":
            raise SpecError(f"leading={self.leading}: expected 0 for matrices in columns")
        if self.depth > min(self.lb, self.ib) or (
            self.depth > 4 and (self.dtype, self.update) != ("float64", "tensor")
        ):
            raise SpecError(
                f"depth={self.depth}: expected 4, or up to lb and ib where tensor cores update in float64"
            )
        if self.shared_bytes > MAX_SHARED_BYTES - _DECLARED:
            raise SpecError(
                f"nb={self.nb}: two {self.dtype} tiles of that order and steps of {self.lb} columns take "
                f"{self.shared_bytes:,} bytes of shared memory, of {MAX_SHARED_BYTES:,}"
            )

    @property
    def _width(self) -> int:
        return PIECE_BYTES // ELEMENT_BYTES[self.dtype]

    @property
    def _pieces(self) -> int:
        return 2 * self.nb * self.lb // self._width

    @property
    def warps_down(self) -> int:
        """Warps below each other in a tile where tensor cores update it: each has a rectangle of whole 16s."""
        warps, squares = self.threads // WARP, self.nb // _UNIT
        pairs = [(down, warps // down) for down in range(1, warps + 1) if warps % down == 0]
        fitting = [down for down, across in pairs if squares % down == 0 and squares % across == 0]
        return min(fitting, key=lambda d: abs(d * d - warps), default=0)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: two tiles, and two buffers of what they are updated by."""
        tiles = 2 * self.nb * (self.nb + self._width)
        steps = max(4 * self.nb * (self.lb + _PAD), self.ib * (self.nb + self._width))
        return (tiles + steps) * ELEMENT_BYTES[self.dtype]

    @property
    def ragged(self) -> bool:
        """Whether rows begin at no whole 16 bytes."""
        return self.leading > 0

    @property
    def guarded(self) -> bool:
        """Whether warps leave out what has no rows, and what is above the diagonal: worth asking, where measured."""
        wide = self.dtype == "float64" and self.update == "tensor"
        return wide or (self.ragged and not self.exact)

    def at(self, leading: int, rows: int = 1) -> FusedPanel:
        """The same panels for matrices of `rows` rows, `leading` elements apart."""
        ragged = self.order == "row" and leading % self._width != 0
        return _moved(self, leading, rows % self.nb == 0) if ragged else self

    def tiles(self, n: int) -> int:
        """Rows of tiles of a matrix of order n."""
        return -(-n // self.nb)

    def counts(self, n: int) -> int:
        """The 32-bit words that blocks of threads count in, for a matrix of order n; 0 before and after."""
        return 2 + self.tiles(n)


# Calls ask each time.
@lru_cache(maxsize=256)
def _moved(panel: FusedPanel, leading: int, exact: bool) -> FusedPanel:
    return replace(panel, leading=leading, exact=exact)


@lru_cache(maxsize=256)
def fused_panel(panel: FusedPanel) -> KernelSource:
    """The kernel of panels; an item is a block of threads. The end of the text describes its arguments."""
    letter = {"float32": "s", "float64": "d"}[panel.dtype]
    sizes = f"nb{panel.nb}_ib{panel.ib}_lb{panel.lb}_t{panel.threads}_b{panel.resident}"
    update = f"{panel.update}{panel.depth if panel.depth > 4 else ''}"
    place = f"_l{panel.leading}{'_exact' * panel.exact}" * panel.ragged
    entry = f"{letter}panel_{panel.order}_{sizes}_{update}{place}{'_timed' * panel.timed}"
    launch = Launch(panel.threads, 1, panel.shared_bytes, cache="shared")
    text = render(
        "panel/fused/fused.cu.jinja",
        entry=entry,
        launch=launch,
        dtype=panel.dtype,
        scalar=SCALARS[panel.dtype],
        wide={"float32": "float4", "float64": "double2"}[panel.dtype],
        parts="xyzw"[: panel._width],
        order=panel.nb,
        nb=panel.nb,
        order_of=panel.order,
        inner=panel.ib,
        lines=min(panel.nb * WARP // panel.threads, 8),
        step=panel.lb,
        schedule=panel,
        math="ieee",
        rounds=True,
        tensor=panel.update == "tensor",
        timed=panel.timed,
        ragged=panel.ragged,
        exact=panel.exact,
        guards=panel.guarded,
        lines_at_once=panel.threads // panel.nb if panel.threads % panel.nb == 0 else 0,
        depth=panel.depth,
        staged=False,
        spec=panel,
        warps_down=panel.warps_down,
    )
    return KernelSource(undefine_macros(text), entry, 1, (), launch)
