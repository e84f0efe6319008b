"""CUDA sources of LU factorizations of larger matrices: panels, row interchanges, and triangular solves beside them.

Matrices are in rows, of an order that is known at the launch. Panels are tall: a block has all rows of one in its
registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kernelgen.emit.source import SCALARS, KernelSource, Launch, render
from kernelgen.emit.thread import undefine_macros
from kernelgen.refusals import SpecError
from kernelgen.targets import ELEMENT_BYTES

# Registers of a thread that can be elements of its rows.
_REGISTERS = 64
# Threads of a block, and its rows, by which panels are factored: the smallest that suffices.
_HEIGHTS = ((128, 1), (256, 1), (512, 1), (512, 2), (512, 4), (512, 8), (512, 16))
LARGEST = _HEIGHTS[-1][0] * _HEIGHTS[-1][1]
# Threads of a block that has a column each.
COLUMNS = 128


@dataclass(frozen=True)
class LuPanel:
    """How panels of `nb` columns and at most `height` rows are factored.

    Raises
    ------
    SpecError
        If registers do not suffice.
    """

    dtype: str
    nb: int
    height: int

    def __post_init__(self) -> None:
        if self.nb not in (2, 4, 8, 16, 32) or self.height > LARGEST or self.nb > widest(self.dtype, self.height):
            raise SpecError(
                f"nb={self.nb!r}: a block has no registers for {self.dtype} panels of {self.nb} columns and "
                f"{self.height:,} rows: use a power of two up to 32, and up to {LARGEST:,} rows"
            )

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _block(self.height)[0]

    @property
    def rows(self) -> int:
        """Rows of a thread."""
        return _block(self.height)[1]


def widest(dtype: str, height: int) -> int:
    """The most columns that a panel of `height` rows can have."""
    return min(32, _REGISTERS * 4 // ELEMENT_BYTES[dtype] // _block(height)[1])


@lru_cache(maxsize=64)
def factor(panel: LuPanel) -> KernelSource:
    """The kernel of panels; an item is a matrix."""
    name = f"getf2_nb{panel.nb}_t{panel.threads}_r{panel.rows}"
    return source_of("lu/panel", name, panel.dtype, panel.nb, Launch(panel.threads, 1), rows=panel.rows)


@lru_cache(maxsize=16)
def swaps(dtype: str, nb: int) -> KernelSource:
    """The kernel of row interchanges; an item is `COLUMNS` columns of a matrix."""
    return source_of("lu/swaps", f"laswp_nb{nb}", dtype, nb, Launch(COLUMNS, 1))


@lru_cache(maxsize=16)
def solve(dtype: str, nb: int) -> KernelSource:
    """The kernel of solves by unit lower triangles; an item is `COLUMNS` columns of a matrix."""
    return source_of("lu/trsm", f"trsm_unit_nb{nb}", dtype, nb, Launch(COLUMNS, 1))


def _block(height: int) -> tuple[int, int]:
    return next(((threads, rows) for threads, rows in _HEIGHTS if threads * rows >= height), _HEIGHTS[-1])


def source_of(template: str, name: str, dtype: str, nb: int, launch: Launch, **variables: int | str) -> KernelSource:
    """The source of a kernel of panels, by its template."""
    entry = {"float32": "s", "float64": "d"}[dtype] + name
    text = render(
        f"panel/{template}.cu.jinja",
        entry=entry,
        launch=launch,
        dtype=dtype,
        scalar=SCALARS[dtype],
        nb=nb,
        math="ieee",
        **variables,
    )
    return KernelSource(undefine_macros(text), entry, 1, (), launch)
