"""Blocked Cholesky factorizations of matrices that are larger than any tile, as sequences of level-3 calls.

The two variants are those of Haidar, Abdelfattah, Tomov and Dongarra ("High-performance Cholesky factorization for
GPU-only execution", GPGPU 2017). The right-looking one updates all that is left after each panel, which gives small
matrices the most to do at once; the left-looking one updates a panel just before it is factored, mostly by gemm. The
blocks on the diagonal, and solving by them, are recursive down to tiles; or panels are, down to those that one launch
factors.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchchol.algorithms.level3 import Block, Level3

LOOKINGS = ("left", "right")


@dataclass(frozen=True)
class Blocking:
    """How a matrix is cut: panels of `nb` columns, a multiple of `tile`, the order that is factored at once.

    With `fused`, `tile` columns are, with all rows below.

    With `ahead`, look-ahead, the columns of the next panel are updated first, and it is factored beside the update of
    the rest.

    Raises
    ------
    ValueError
        If `nb` is not such a multiple, there is no such looking, or one that has nothing to do beside a panel.
    """

    tile: int
    nb: int
    looking: str = "right"
    ahead: bool = False
    fused: bool = False

    def __post_init__(self) -> None:
        if self.tile < 1 or self.nb < 1 or self.nb % self.tile:
            raise ValueError(f"nb: got {self.nb}, expected a positive multiple of the tile, {self.tile}")
        if self.looking not in LOOKINGS:
            raise ValueError(f"looking: got {self.looking!r}, expected one of {', '.join(map(repr, LOOKINGS))}")
        if self.ahead and self.looking != "right":
            raise ValueError(f"looking: got {self.looking!r} with look-ahead, expected 'right'")


def factor(calls: Level3, n: int, blocking: Blocking) -> None:
    """Factor matrices of order n, of whose lower triangles the calls make factors."""
    if blocking.ahead:
        _ahead(calls, n, blocking)
        return
    step = _left if blocking.looking == "left" else _right
    for at in range(0, n, blocking.nb):
        step(calls, n, at, blocking)


def _left(calls: Level3, n: int, at: int, blocking: Blocking) -> None:
    """Update the panel at `at` by all columns before it, then factor it."""
    size = min(blocking.nb, n - at)
    diagonal, below = Block.diagonal(at, size), Block(at + size, at, n - at - size, size)
    done, done_below = Block(at, 0, size, at), Block(at + size, 0, below.rows, at)
    if at:
        calls.syrk(diagonal, done)
        if below.rows:
            calls.gemm(below, done_below, done)
    _panel(calls, diagonal, below, blocking)


def _right(calls: Level3, n: int, at: int, blocking: Blocking) -> None:
    """Factor the panel at `at`, then update all that is right of it."""
    size = min(blocking.nb, n - at)
    below = Block(at + size, at, n - at - size, size)
    _panel(calls, Block.diagonal(at, size), below, blocking)
    if below.rows:
        calls.syrk(Block.diagonal(at + size, below.rows), below)


def _ahead(calls: Level3, n: int, blocking: Blocking) -> None:
    """`_right`, with each panel but the first one factored beside the update of all that is right of it."""
    beside, nb = calls.beside(), blocking.nb
    size = min(nb, n)
    _panel(calls, Block.diagonal(0, size), Block(size, 0, n - size, size), blocking)
    for at in range(nb, n, nb):
        size = min(nb, n - at)
        rest = n - at - size
        head, tail = Block(at, at - nb, size, nb), Block(at + size, at - nb, rest, nb)
        diagonal, below = Block.diagonal(at, size), Block(at + size, at, rest, size)
        calls.syrk(diagonal, head)
        if rest:
            calls.gemm(below, tail, head)
        beside.wait_for(calls)
        if rest:
            calls.syrk(Block.diagonal(at + size, rest), tail)
        _panel(beside, diagonal, below, blocking)
        calls.wait_for(beside)


def _panel(calls: Level3, diagonal: Block, below: Block, blocking: Blocking) -> None:
    if blocking.fused:
        panel(calls, diagonal._replace(rows=diagonal.rows + below.rows), blocking.tile)
        return
    potrf(calls, diagonal, blocking.tile)
    if below.rows:
        trsm(calls, diagonal, below, blocking.tile)


def panel(calls: Level3, p: Block, width: int) -> None:
    """The factors of panels that begin on the diagonal, recursively by halves of their columns."""
    if p.columns <= width:
        calls.panel(p)
        return
    first = halved(p.columns, width)
    last = p.columns - first
    left, right = p.part(0, 0, p.rows, first), p.part(first, first, p.rows - first, last)
    panel(calls, left, width)
    top = left.part(first, 0, last, first)
    calls.syrk(right._replace(rows=last), top)
    if rest := right.rows - last:
        calls.gemm(right.part(last, 0, rest, last), left.part(p.columns, 0, rest, first), top)
    panel(calls, right, width)


def potrf(calls: Level3, c: Block, tile: int) -> None:
    """The factors of blocks on the diagonal, of any order, recursively."""
    if c.rows <= tile:
        calls.potrf(c)
        return
    first = halved(c.rows, tile)
    last = c.rows - first
    above, corner = c.part(0, 0, first, first), c.part(first, first, last, last)
    below = c.part(first, 0, last, first)
    potrf(calls, above, tile)
    trsm(calls, above, below, tile)
    calls.syrk(corner, below)
    potrf(calls, corner, tile)


def trsm(calls: Level3, l: Block, b: Block, tile: int) -> None:
    """The solutions of X L^T = B, in place of B, for blocks on the diagonal of any order, recursively."""
    if l.rows <= tile:
        calls.trsm(l, b)
        return
    first = halved(l.rows, tile)
    last = l.rows - first
    left, right = b.part(0, 0, b.rows, first), b.part(0, first, b.rows, last)
    trsm(calls, l.part(0, 0, first, first), left, tile)
    calls.gemm(right, left, l.part(first, 0, last, first))
    trsm(calls, l.part(first, first, last, last), right, tile)


def halved(size: int, tile: int) -> int:
    """The larger half of a size, in whole tiles."""
    return -(-size // (2 * tile)) * tile
