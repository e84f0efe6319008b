"""The level-3 calls that the blocked algorithms are made of, on parts of a batch of square matrices."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self


class Block(NamedTuple):
    """A part of every matrix of a batch: the first row and column, and how many there are of each."""

    row: int
    column: int
    rows: int
    columns: int

    @classmethod
    def diagonal(cls, at: int, size: int) -> Block:
        """The square block that begins at diagonal element `at`."""
        return cls(at, at, size, size)

    def part(self, row: int, column: int, rows: int, columns: int) -> Block:
        """A part of this one, whose row and column are counted from here."""
        return Block(self.row + row, self.column + column, rows, columns)


class Level3(Protocol):
    """Work on the lower triangles of a batch of matrices, in place and in order: calls see what those before did.

    What is above the diagonal of a block on the diagonal has no meaning until `potrf` has written zeros there.
    """

    def potrf(self, c: Block) -> None:
        """The Cholesky factors L of diagonal tiles, zeros above their diagonals.

        The info of a matrix that fails becomes LAPACK's, unless one before it has failed; the first tile sets it in
        any case. Columns of the tile from the one that fails on are an identity's.
        """

    def trsm(self, l: Block, b: Block) -> None:
        """The solutions X of X L^T = B, in place of B, for the factors of a diagonal tile."""

    def panel(self, p: Block) -> None:
        """The factors of panels in place: L of the square on the diagonal, and X L^T = B of the rows below it.

        Their info is as that of `potrf`.
        """

    def syrk(self, c: Block, a: Block) -> None:
        """C - A A^T in place of C, the lower triangle of a block on the diagonal."""

    def gemm(self, c: Block, a: Block, b: Block) -> None:
        """C - A B^T in place of C."""

    def beside(self) -> Self:
        """Calls on the same matrices whose work runs beside that of these: each begins when it can."""

    def wait_for(self, other: Self) -> None:
        """Have the work of later calls begin when what the others have been given is done."""
