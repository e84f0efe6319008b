"""Tile programs: operations on tiles, loops over them, and what is made of a program.

A matrix is a grid of nb x nb tiles, the last row and column of tiles smaller when nb does not divide n. A program is
data: every target renders it, and the tests interpret it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kernelgen.programs.columns import ColumnOp


@dataclass(frozen=True)
class Var:
    """A loop variable plus a constant."""

    name: str
    offset: int = 0

    def __add__(self, offset: int) -> Var:
        return Var(self.name, self.offset + offset)

    def __str__(self) -> str:
        return f"{self.name} + {self.offset}" if self.offset else self.name


Index = int | Var


@dataclass(frozen=True)
class Load:
    """Tile (i, j) of `source`, the input "a" or the result "l", becomes the register tile `tile`.

    `first` marks one load of each tile, as early as loops allow: where the next group's data may be prefetched.
    """

    tile: str
    i: Index
    j: Index
    rows: int
    cols: int
    source: str
    lower: bool = False
    first: bool = False


@dataclass(frozen=True)
class Store:
    """The register tile `tile` becomes tile (i, j) of the result "l", or of another `place`."""

    tile: str
    i: Index
    j: Index
    rows: int
    cols: int
    lower: bool = False
    place: str = "l"


@dataclass(frozen=True)
class Fill:
    """C = zero or, if `unit`, the identity."""

    c: str
    rows: int
    cols: int
    unit: bool = False


@dataclass(frozen=True)
class Potrf:
    """C = Cholesky factor of C, a diagonal tile; its reciprocal pivots are kept as those of tile k."""

    c: str
    k: Index
    size: int


@dataclass(frozen=True)
class Trsm:
    """C = C * inverse(transpose(A)), or C * inverse(A), A the factored diagonal tile k, by its reciprocal pivots."""

    a: str
    c: str
    k: Index
    rows: int
    cols: int
    transposed: bool = True


@dataclass(frozen=True)
class Syrk:
    """C = C - A * transpose(A) or, with `add`, C + A * transpose(A), lower triangle."""

    a: str
    c: str
    size: int
    inner: int
    add: bool = False


@dataclass(frozen=True)
class Gemm:
    """C = C - A * transpose(B), or C - A * B; with `add` the product is added."""

    a: str
    b: str
    c: str
    rows: int
    cols: int
    inner: int
    transposed: bool = True
    add: bool = False


@dataclass(frozen=True)
class Loop:
    """The body for var = start, ..., stop - 1, or from stop - 1 down to start."""

    var: str
    start: Index
    stop: Index
    body: tuple[Node, ...]
    descending: bool = False

    def values(self, known: Mapping[str, int]) -> range:
        """The values of the variable in their order, given those of the loops around."""
        values = range(resolve(self.start, known), resolve(self.stop, known))
        return values[::-1] if self.descending else values


TileOp = Load | Store | Fill | Potrf | Trsm | Syrk | Gemm | ColumnOp
Node = TileOp | Loop
Body = Callable[[Index], tuple[Node, ...]]


@dataclass(frozen=True)
class Grid:
    """An n x n matrix as tiles: `full` rows of nb x nb tiles and, if `corner` is not 0, one smaller row."""

    n: int
    nb: int

    @property
    def full(self) -> int:
        return self.n // self.nb

    @property
    def corner(self) -> int:
        return self.n % self.nb

    def size(self, index: Index) -> int:
        """Rows of tile row `index`; loop variables run over full tiles only."""
        return self.corner if index == self.full else self.nb

    def each(self, var: str, start: Index, body: Body) -> tuple[Node, ...]:
        """The body for every tile row from `start` on: a loop over the full ones, then the corner by itself."""
        past_end = isinstance(start, int) and start >= self.full
        loop = () if past_end else (Loop(var, start, self.full, body(Var(var))),)
        last = body(self.full) if self.corner and (isinstance(start, Var) or start <= self.full) else ()
        return loop + last

    def each_from_last(self, var: str, body: Body) -> tuple[Node, ...]:
        """The body for every tile row from the last to the first: the corner, then a loop over the full ones."""
        corner = body(self.full) if self.corner else ()
        return (*corner, Loop(var, 0, self.full, body(Var(var)), descending=True))


def without_empty_loops(nodes: tuple[Node, ...], known: Mapping[str, range] | None = None) -> tuple[Node, ...]:
    """The nodes less the loops that never run: with one or two rows of tiles most do not, and cost compile time."""
    kept: list[Node] = []
    ranges = known or {}
    for node in nodes:
        if isinstance(node, Loop):
            values = range(_values(node.start, ranges).start, _values(node.stop, ranges).stop - 1)
            if values:
                inside = {**ranges, node.var: values}
                if isinstance(node.start, Var):  # the body only sees starts that lie before the stop
                    starts = ranges[node.start.name]
                    inside[node.start.name] = range(starts.start, min(starts.stop, values.stop - node.start.offset))
                kept.append(replace(node, body=without_empty_loops(node.body, inside)))
        else:
            kept.append(node)
    return tuple(kept)


def _values(index: Index, ranges: Mapping[str, range]) -> range:
    """Every value that an index can have inside loops over these ranges."""
    if isinstance(index, Var):
        values = ranges[index.name]
        return range(values.start + index.offset, values.stop + index.offset)
    return range(index, index + 1)


def resolve(index: Index, values: Mapping[str, int]) -> int:
    """The number that an index stands for, given the loop variables' values."""
    return values[index.name] + index.offset if isinstance(index, Var) else index


def expand(program: tuple[Node, ...], values: Mapping[str, int] | None = None) -> Iterator[TileOp]:
    """The program as straight-line code: every loop unrolled, every index a number."""
    known = values or {}
    for node in program:
        if isinstance(node, Loop):
            for value in node.values(known):
                yield from expand(node.body, {**known, node.var: value})
        else:
            names = {field.name for field in fields(node)} & {"i", "j", "k"}
            indices: dict[str, Any] = {name: resolve(getattr(node, name), known) for name in names}
            yield replace(node, **indices)


def operations(program: tuple[Node, ...]) -> Iterator[TileOp]:
    """Every operation as written, loops entered once: what a target needs microkernels for."""
    for node in program:
        if isinstance(node, Loop):
            yield from operations(node.body)
        else:
            yield node


@dataclass(frozen=True)
class Placed:
    """An operation and the place (row, column of tiles) of every tile it names."""

    op: TileOp
    places: Mapping[str, tuple[int, int]]


def resident(program: tuple[Node, ...]) -> Iterator[Placed]:
    """Straight-line code whose tiles all stay in registers: each is loaded once and stored once.

    Of the loads of a tile the first remains, of its stores the last.
    """
    ops = list(expand(program))
    final = {(op.i, op.j): at for at, op in enumerate(ops) if isinstance(op, Store)}
    places: dict[str, tuple[int, int]] = {}
    loaded = set()
    for at, op in enumerate(ops):
        if isinstance(op, Load):
            place = places[op.tile] = (resolve(op.i, {}), resolve(op.j, {}))
            if place in loaded:
                continue
            loaded.add(place)
        elif isinstance(op, Store) and final[op.i, op.j] != at:
            continue
        yield Placed(op, dict(places))
