"""The tile program of a factorization: right, left and top looking as one stream of tile operations.

The three orders of evaluation are those of Gates et al., "Autotuning Batch Cholesky Factorization in CUDA with
Interleaved Layout of Matrices" (IPDPSW 2017), section III.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernelgen.programs.tiles import (
    Gemm,
    Grid,
    Index,
    Load,
    Loop,
    Node,
    Potrf,
    Store,
    Syrk,
    Trsm,
    Var,
    without_empty_loops,
)


def tile_program(n: int, nb: int, looking: str, *, in_place: bool) -> tuple[Node, ...]:
    """The factorization of an n x n matrix by nb x nb tiles.

    Out of place, a tile is read from the input "a" at its first use and from the result "l" ever after; in place
    there is only "l".
    """
    source = "l" if in_place else "a"
    return without_empty_loops(_PROGRAMS[looking](Grid(n, nb), source))


def _updated(grid: Grid, i: Index, j: Index, source: str) -> tuple[Node, ...]:
    """C = A(i, j) less the products of all tile columns before j."""
    rows, cols, lower = grid.size(i), grid.size(j), i == j
    load = Load("C", i, j, rows, cols, source, lower=lower, first=True)
    p = Var("p")
    operand = Load("A", i, p, rows, grid.nb, "l")
    update: tuple[Node, ...]
    if lower:
        update = (operand, Syrk("A", "C", rows, grid.nb))
    else:
        update = (operand, Load("B", j, p, cols, grid.nb, "l"), Gemm("A", "B", "C", rows, cols, grid.nb))
    return (load,) if j == 0 else (load, Loop("p", 0, j, update))


def _factor_diagonal(grid: Grid, k: Index) -> tuple[Node, ...]:
    size = grid.size(k)
    return (Potrf("C", k, size), Store("C", k, k, size, size, lower=True))


def _solve(grid: Grid, i: Index, k: Index) -> tuple[Node, ...]:
    rows, cols = grid.size(i), grid.size(k)
    diagonal = Load("D", k, k, cols, cols, "l", lower=True)
    return (diagonal, Trsm("D", "C", k, rows, cols), Store("C", i, k, rows, cols))


def _left(grid: Grid, source: str) -> tuple[Node, ...]:
    def column(k: Index) -> tuple[Node, ...]:
        diagonal = _updated(grid, k, k, source) + _factor_diagonal(grid, k)
        below = grid.each("i", k + 1, lambda i: _updated(grid, i, k, source) + _solve(grid, i, k))
        return diagonal + below

    return grid.each("k", 0, column)


def _top(grid: Grid, source: str) -> tuple[Node, ...]:
    def row(i: Index) -> tuple[Node, ...]:
        k = Var("k")
        left = (Loop("k", 0, i, _updated(grid, i, k, source) + _solve(grid, i, k)),) if i != 0 else ()
        return left + _updated(grid, i, i, source) + _factor_diagonal(grid, i)

    return grid.each("i", 0, row)


def _right(grid: Grid, source: str) -> tuple[Node, ...]:
    def step(k: Index, before: str) -> tuple[Node, ...]:
        size = grid.size(k)
        whole = before == "a"  # this step touches every tile first; in place, each step touches its column first
        column = whole or source == "l"

        def solve(i: Index) -> tuple[Node, ...]:
            return (Load("C", i, k, grid.size(i), size, before, first=column), *_solve(grid, i, k))

        def update(j: Index) -> tuple[Node, ...]:
            cols = grid.size(j)
            diagonal = (
                Load("C", j, j, cols, cols, before, lower=True, first=whole),
                Load("A", j, k, cols, size, "l"),
                Syrk("A", "C", cols, size),
                Store("C", j, j, cols, cols, lower=True),
            )
            return diagonal + grid.each("i", j + 1, lambda i: below(i, j))

        def below(i: Index, j: Index) -> tuple[Node, ...]:
            rows, cols = grid.size(i), grid.size(j)
            return (
                Load("C", i, j, rows, cols, before, first=whole),
                Load("A", i, k, rows, size, "l"),
                Load("B", j, k, cols, size, "l"),
                Gemm("A", "B", "C", rows, cols, size),
                Store("C", i, j, rows, cols),
            )

        pivot = (Load("C", k, k, size, size, before, lower=True, first=column), *_factor_diagonal(grid, k))
        return pivot + grid.each("i", k + 1, solve) + grid.each("j", k + 1, update)

    # The first step reads the input, the others what it left: one loop cannot say both.
    if source == "l":
        return grid.each("k", 0, lambda k: step(k, "l"))
    return step(0, source) + grid.each("k", 1, lambda k: step(k, "l"))


_PROGRAMS: Mapping[str, Callable[[Grid, str], tuple[Node, ...]]] = {
    "right": _right,
    "left": _left,
    "top": _top,
}
