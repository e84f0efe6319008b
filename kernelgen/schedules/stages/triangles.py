"""Triangles of a warp's matrices in shared memory: where the elements are."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from kernelgen.gpu import PIECE_BYTES, WARP
from kernelgen.targets import ELEMENT_BYTES


@dataclass(frozen=True)
class TriangleStage:
    """Room for the triangles of the matrices of a warp that has `split` threads for each, elements interleaved.

    A triangle is lines, its columns, or its rows if those are neighbours in memory (`by_rows`). A long line shares
    its slots with a short one. Neighbours across lines are then the same odd number of slots apart, and those of a
    line one, so that threads that read one each read from different banks. The first line that shares is a multiple
    of `split`.
    """

    n: int
    dtype: str
    split: int
    by_rows: bool
    canonical: bool

    @property
    def matrices(self) -> int:
        """Matrices of a warp."""
        return WARP // self.split

    @property
    def pitch(self) -> int:
        """Scalars from one slot to the next: odd where many threads at once write elements of one matrix."""
        return self.matrices + 1 if self.canonical and self.matrices > 4 else self.matrices

    @property
    def line(self) -> int:
        """Slots of a long line and a short one."""
        return self.n + 1 if self.split == 1 else (self.n + 1) | 1

    @property
    def fold(self) -> int:
        """The first short column, or the first long row."""
        half = self.n // 2 if self.by_rows else -(-self.n // 2)
        turns = half // self.split if self.by_rows else -(-half // self.split)
        return min(turns * self.split, self.n)

    @property
    def scalars(self) -> int:
        """Scalars of a warp."""
        lines = self.n - self.fold if self.by_rows else self.fold
        return lines * self.line * self.pitch

    @property
    def width(self) -> int:
        """Matrices of which one instruction copies an element, where they are neighbours in memory."""
        return gcd(PIECE_BYTES // ELEMENT_BYTES[self.dtype], self.matrices)

    @property
    def copies(self) -> int:
        """Instructions of a thread that copy the lines, each of them `width` matrices of an element."""
        turn = WARP * self.width // self.matrices
        return sum(-(-length // turn) for length in range(1, self.n + 1))
