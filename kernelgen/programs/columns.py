"""Operations on columns: what programs of factorizations of general matrices are made of.

Such a program has the same loops as one of tiles (`kernelgen.programs.tiles`); a matrix is its columns, "x", beside
which right-hand sides, "y", are further columns. Rows are worked on from row k on, or up to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# A number or a loop's variable; `kernelgen.programs.tiles` has the type, and needs the operations here.
Index = Any


@dataclass(frozen=True)
class Pivot:
    """Pivot k = the row, from k on, of the element of column k that is largest in size, the first of equal ones."""

    k: Index


@dataclass(frozen=True)
class Mark:
    """The row of pivot k is the one that `Exchange` exchanges."""

    k: Index


@dataclass(frozen=True)
class Exchange:
    """Rows k and that of the marked pivot of column j of `of` change places."""

    of: str
    j: Index
    k: Index


@dataclass(frozen=True)
class Scale:
    """Column k of the matrix below row k = itself / its element in row k, unless that is zero."""

    k: Index


@dataclass(frozen=True)
class Eliminate:
    """Column j of `of` below row k = itself - column k of the matrix * the element (k, j)."""

    of: str
    j: Index
    k: Index


@dataclass(frozen=True)
class Divide:
    """Element (k, j) of `of` = itself / element (k, k) of the matrix."""

    of: str
    j: Index
    k: Index


@dataclass(frozen=True)
class Reduce:
    """Column j of `of` above row k = itself - column k of the matrix * the element (k, j)."""

    of: str
    j: Index
    k: Index


@dataclass(frozen=True)
class Reflect:
    """Column k of the matrix from row k on = what reflector k makes of it, and below row k the reflector itself."""

    k: Index


@dataclass(frozen=True)
class Apply:
    """Column j of `of` from row k on = reflector k times itself."""

    of: str
    j: Index
    k: Index


@dataclass(frozen=True)
class Unit:
    """Column k of the matrix = reflector k times column k of the identity."""

    k: Index


ColumnOp = Pivot | Mark | Exchange | Scale | Eliminate | Divide | Reduce | Reflect | Apply | Unit
