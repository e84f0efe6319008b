"""The tile program of potri: the inverse X of A = L L^T, of which the upper triangle is computed.

As LAPACK has it, X = L^-T L^-1 (Higham, "Accuracy and Stability of Numerical Algorithms", 14.3.4, method D). The rows
of Y = L^-T are those of the identity, solved for forward, by method 1 of section 14.2.1; row i begins with column i.
Then X = Y Y^T.

Tile (i, k) of Y, k > i, is in the upper triangle "l", which the factor leaves free. The diagonal tile is in a place
of its own, "y", until its row is done: no later one needs L(i, i). X takes the place of Y, tile after tile of a row.
"""

from __future__ import annotations

from kernelgen.programs.tiles import (
    Fill,
    Gemm,
    Grid,
    Index,
    Load,
    Loop,
    Node,
    Store,
    Syrk,
    Trsm,
    Var,
    without_empty_loops,
)


def inverse_program(n: int, nb: int) -> tuple[Node, ...]:
    """The inverse of an n x n matrix by its factor, of nb x nb tiles."""
    grid = Grid(n, nb)
    solved = grid.each("i", 0, lambda i: _solved(grid, i))
    squared = grid.each("i", 0, lambda i: _squared(grid, i))
    return without_empty_loops(solved + squared)


def _solved(grid: Grid, i: Index) -> tuple[Node, ...]:
    """Row i of Y."""
    size = grid.size(i)
    first = (Fill("C", size, size, unit=True), *_divided(grid, i, i), Store("C", i, i, size, size, place="y"))
    others = grid.each("k", i + 1, lambda k: _tile(grid, i, k))
    return (*first, *others, Load("C", i, i, size, size, "y"), Store("C", i, i, size, size))


def _tile(grid: Grid, i: Index, k: Index) -> tuple[Node, ...]:
    """Y(i, k) = -Y(i, i ... k-1) * transpose(L(k, i ... k-1)) * inverse(transpose(L(k, k)))."""
    rows, cols = grid.size(i), grid.size(k)

    def update(p: Index, place: str) -> tuple[Node, ...]:
        inner = grid.size(p)
        return (
            Load("A", i, p, rows, inner, place),
            Load("B", k, p, cols, inner, "l"),
            Gemm("A", "B", "C", rows, cols, inner),
        )

    others = Loop("p", i + 1, k, update(Var("p"), "l"))
    return (Fill("C", rows, cols), *update(i, "y"), others, *_divided(grid, i, k), Store("C", i, k, rows, cols))


def _divided(grid: Grid, i: Index, k: Index) -> tuple[Node, ...]:
    rows, cols = grid.size(i), grid.size(k)
    return (Load("D", k, k, cols, cols, "l", lower=True), Trsm("D", "C", k, rows, cols))


def _squared(grid: Grid, i: Index) -> tuple[Node, ...]:
    """Row i of X = Y * transpose(Y): tiles (i, i), ..., of which the first is lower."""
    size = grid.size(i)

    def square(p: Index) -> tuple[Node, ...]:
        inner = grid.size(p)
        return (Load("A", i, p, size, inner, "l"), Syrk("A", "C", size, inner, add=True))

    def product(j: Index, p: Index) -> tuple[Node, ...]:
        cols, inner = grid.size(j), grid.size(p)
        operands = Load("A", i, p, size, inner, "l"), Load("B", j, p, cols, inner, "l")
        return (*operands, Gemm("A", "B", "C", size, cols, inner, add=True))

    def tile(j: Index) -> tuple[Node, ...]:
        cols = grid.size(j)
        products = grid.each("p", j, lambda p: product(j, p))
        return (Fill("C", size, cols), *products, Store("C", i, j, size, cols))

    diagonal = (Fill("C", size, size), *grid.each("p", i, square), Store("C", i, i, size, size, lower=True))
    return diagonal + grid.each("j", i + 1, tile)
