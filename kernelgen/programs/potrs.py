"""The tile program of potrs: solve A X = B, with A = L L^T, for a few right-hand sides at a time.

The right-hand sides are rows here, as if they stood below the matrix: the forward solve is then what a factorization
does with its last rows, Y^T = B^T L^-T, by the same tile operations. The backward solve, X^T = Y^T L^-1, takes the
tiles of L the other way round, from the last column to the first (Golub and Van Loan, Matrix Computations, 3.1).
"""

from __future__ import annotations

from kernelgen.programs.tiles import Gemm, Grid, Index, Load, Loop, Node, Store, Trsm, Var, without_empty_loops


def solve_program(n: int, nb: int, rhs: int) -> tuple[Node, ...]:
    """The solution of `rhs` right-hand sides by an n x n factor of nb x nb tiles.

    A right-hand side is read from "b" at its first use and from "x" ever after.
    """
    grid = Grid(n, nb)
    forward = grid.each("k", 0, lambda k: _forward(grid, k, rhs))
    backward = grid.each_from_last("k", lambda k: _backward(grid, k, rhs))
    return without_empty_loops(forward + backward)


def _forward(grid: Grid, k: Index, rhs: int) -> tuple[Node, ...]:
    """Y(k) = (B(k) - Y(0 ... k-1) * transpose(L(k, 0 ... k-1))) * inverse(transpose(L(k, k)))."""
    cols, p = grid.size(k), Var("p")
    update = (
        Load("A", 0, p, rhs, grid.nb, "x"),
        Load("B", k, p, cols, grid.nb, "l"),
        Gemm("A", "B", "C", rhs, cols, grid.nb),
    )
    before = () if k == 0 else (Loop("p", 0, k, update),)
    return (Load("C", 0, k, rhs, cols, "b", first=True), *before, *_divided(grid, k, rhs, transposed=True))


def _backward(grid: Grid, k: Index, rhs: int) -> tuple[Node, ...]:
    """X(k) = (Y(k) - X(k+1 ...) * L(k+1 ..., k)) * inverse(L(k, k))."""
    cols = grid.size(k)

    def update(p: Index) -> tuple[Node, ...]:
        inner = grid.size(p)
        return (
            Load("A", 0, p, rhs, inner, "x"),
            Load("B", p, k, inner, cols, "l"),
            Gemm("A", "B", "C", rhs, cols, inner, transposed=False),
        )

    after = grid.each("p", k + 1, update)
    return (Load("C", 0, k, rhs, cols, "x"), *after, *_divided(grid, k, rhs, transposed=False))


def _divided(grid: Grid, k: Index, rhs: int, *, transposed: bool) -> tuple[Node, ...]:
    cols = grid.size(k)
    diagonal = Load("D", k, k, cols, cols, "l", lower=True)
    return (diagonal, Trsm("D", "C", k, rhs, cols, transposed=transposed), Store("C", 0, k, rhs, cols))
