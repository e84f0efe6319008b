"""The CUDA source of one matrix on one block of threads, its panel in shared memory, in any order of evaluation.

Right and left looking, the panel is a column of tiles: what is updated, or what updates the rest. Top looking, it is
a row of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kernelgen.emit.source import SCALARS, KernelSource, Launch, render
from kernelgen.emit.thread import cuda_source
from kernelgen.gpu import MAX_SHARED_BYTES
from kernelgen.problem import MATHS
from kernelgen.refusals import integer, one_of, require
from kernelgen.schedules.axes import LOOKINGS
from kernelgen.targets import CUDA, ELEMENT_BYTES

MAX_PANEL_N = 1024
TILES = (8, 16, 32)
_THREADS = 256


@dataclass(frozen=True)
class _Shape:
    """Which tiles are in shared memory, and who works on them."""

    n: int
    nb: int
    looking: str

    @property
    def columns(self) -> int:
        """Threads of a row of a tile."""
        return min(self.nb, _THREADS // self.nb)

    @property
    def sets(self) -> int:
        """Tiles that threads work on side by side."""
        return _THREADS // (self.nb * self.columns)

    @property
    def most(self) -> int:
        """Tiles that a thread works on at a time."""
        return 4 if self.nb == max(TILES) else 8

    @property
    def tiles(self) -> int:
        """Tiles of a row of the matrix."""
        return -(-self.n // self.nb)

    @property
    def panel(self) -> int:
        """Tiles of the panel, and those that threads go beyond it."""
        return self.tiles + (0 if self.looking == "top" else self.sets * self.most - 1)

    @property
    def all(self) -> int:
        """Tiles in shared memory."""
        staged = {"left": self.sets * self.most + 1, "top": self.sets * self.most, "right": 0}
        return self.panel + staged[self.looking]

    @property
    def elements(self) -> int:
        """Elements of the tiles, and of the inverses of the pivots."""
        return self.all * self.nb * (self.nb + 1) + self.tiles * self.nb


@dataclass(frozen=True)
class _Schedule:
    """The templates' variables, by a schedule."""

    family: ClassVar[str] = "shared"


@dataclass(frozen=True)
class _Spec:
    """The templates' variables, by a spec."""

    name: str
    layout: ClassVar[str] = "canonical"


def generate_single_panel(
    n: int, dtype: str = "float32", math: str = "ieee", looking: str = "left", nb: int = max(TILES)
) -> KernelSource:
    """The CUDA source of a kernel with the arguments and arrays of `generate_single`'s of the shared family.

    Parameters
    ----------
    n : int
        Order of the matrix, 1 to 1024.
    dtype : {"float32", "float64"}
        Of its elements.
    math : {"ieee", "fast"}
        Accuracy class of roots and reciprocals.
    looking : {"right", "left", "top"}
        When updates are applied.
    nb : {8, 16, 32}
        Tile size.

    Raises
    ------
    SpecError
        If an argument is outside what can be built, or the panel does not fit shared memory.
    """
    n = integer("n", n, 1, MAX_PANEL_N)
    one_of("dtype", dtype, tuple(ELEMENT_BYTES))
    one_of("math", math, MATHS)
    one_of("looking", looking, LOOKINGS)
    require(nb in TILES, "nb", nb, f"use one of {', '.join(map(str, TILES))}")
    shape = _Shape(n, nb, looking)
    shared = shape.elements * ELEMENT_BYTES[dtype]
    room = f"its panel takes {shared:,} bytes of shared memory, of {MAX_SHARED_BYTES:,}: use a smaller one"
    require(shared <= MAX_SHARED_BYTES, "n", n, room)
    kind = {"float32": "f32", "float64": "f64"}[dtype]
    name = f"potrf_{kind}_n{n}_single_panel_{looking}_nb{nb}_{math}_{CUDA.name}"
    launch = Launch(_THREADS, 1, shared, cache="shared")
    text = render(
        "shared/single.cu.jinja",
        spec=_Spec(name),
        schedule=_Schedule(),
        problem="potrf of a single matrix, lower triangle",
        n=n,
        nb=nb,
        tiles=shape.tiles,
        dtype=dtype,
        scalar=SCALARS[dtype],
        math=math,
        looking=looking,
        shape=shape,
        launch=launch,
    )
    return cuda_source(text, name, dtype, math, launch)
