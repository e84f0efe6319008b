"""CUDA sources of QR factorizations of larger matrices: panels, and what products apply their reflectors by.

Matrices are in rows, of sides that are known at the launch. A block has all rows of a panel in its registers.
"""

from __future__ import annotations

from functools import lru_cache

from kernelgen.emit.panels.lu_panel import LuPanel, source_of
from kernelgen.emit.source import KernelSource, Launch
from kernelgen.gpu import WARP

# Threads of a block that copies, and elements that each of them does.
COPIERS, EACH = 128, 16


@lru_cache(maxsize=64)
def factor(panel: LuPanel) -> KernelSource:
    """The kernel of panels; an item is a matrix."""
    name = f"geqr2_nb{panel.nb}_t{panel.threads}_r{panel.rows}"
    return source_of("qr/panel", name, panel.dtype, panel.nb, Launch(panel.threads, 1), rows=panel.rows, root="pivot")


@lru_cache(maxsize=16)
def vectors(dtype: str, nb: int) -> KernelSource:
    """The kernel that copies reflectors, with ones and zeros; an item is `COPIERS` * `EACH` elements of a matrix."""
    return source_of("qr/vectors", f"larfv_nb{nb}", dtype, nb, Launch(COPIERS, 1), each=EACH)


@lru_cache(maxsize=16)
def triangles(dtype: str, nb: int) -> KernelSource:
    """The kernel of triangles T of reflectors I - V T V^T, by V^T V; an item is a matrix."""
    return source_of("qr/larft", f"larft_nb{nb}", dtype, nb, Launch(WARP, 1))


@lru_cache(maxsize=4)
def identities(dtype: str) -> KernelSource:
    """The kernel that writes columns of identities; an item is `COPIERS` * `EACH` elements of a matrix."""
    return source_of("qr/laset", "laset", dtype, 1, Launch(COPIERS, 1), each=EACH)


@lru_cache(maxsize=4)
def zeros(dtype: str) -> KernelSource:
    """The kernel that finds zeros on diagonals; an item is a matrix."""
    return source_of("qr/zeros", "zeros", dtype, 1, Launch(WARP, 1))
