"""The CUDA source of the last few rows of factors, below a leading part that is factored already."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from kernelgen.emit.panels.panel import ORDERS
from kernelgen.emit.source import SCALARS, KernelSource, Launch, render
from kernelgen.emit.thread import undefine_macros
from kernelgen.gpu import WARP
from kernelgen.refusals import one_of, require
from kernelgen.targets import ELEMENT_BYTES

MOST_ROWS, MOST_COLUMNS = 8, 1024
# Warps that multiply, beside the one that solves.
_OTHERS = 8


@dataclass(frozen=True)
class Border:
    """A block of threads for the last `rows` rows, 1 to 8, of each matrix, behind at most 1,024 columns.

    Raises
    ------
    SpecError
        If a value is none of these.
    """

    dtype: str
    order: str
    rows: int
    family: ClassVar[str] = "panel"

    def __post_init__(self) -> None:
        one_of("dtype", self.dtype, tuple(ELEMENT_BYTES))
        one_of("order", self.order, ORDERS)
        require(1 <= self.rows <= MOST_ROWS, "rows", self.rows, f"use 1 to {MOST_ROWS}")

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: its rows, blocks of the factor, sums of products, and the corner."""
        sums = WARP * (_OTHERS if self.order == "col" else 1)
        elements = self.rows * (MOST_COLUMNS + sums + self.rows) + 2 * WARP * (WARP + 1)
        return elements * ELEMENT_BYTES[self.dtype]


@lru_cache(maxsize=64)
def border(last: Border) -> KernelSource:
    """The kernel of last rows; an item is a matrix. The end of the text describes its arguments."""
    entry = f"{'s' if last.dtype == 'float32' else 'd'}border_{last.order}_r{last.rows}"
    launch = Launch(WARP * (1 + _OTHERS), 1, last.shared_bytes, cache="shared")
    text = render(
        "panel/border.cu.jinja",
        entry=entry,
        launch=launch,
        dtype=last.dtype,
        scalar=SCALARS[last.dtype],
        order_of=last.order,
        rows=last.rows,
        most=MOST_COLUMNS,
        others=_OTHERS,
    )
    return KernelSource(undefine_macros(text), entry, 1, (), launch)
