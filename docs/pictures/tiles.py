"""A matrix as a grid of tiles, and the program of its factorization."""

from __future__ import annotations

from docs.pictures.svg import COLOURS, Drawing
from kernelgen.programs.potrf import tile_program
from kernelgen.programs.tiles import Gemm, Grid, Load, Potrf, Store, Syrk, TileOp, Trsm, expand, resolve

N, NB = 10, 4
_CELL, _LEFT, _TOP, _LINE = 22, 14, 34, 15
_BLUE, _VERMILION = COLOURS[:2]


def program() -> list[str]:
    """The operations of a left-looking factorization, a line each."""
    return [_words(op) for op in expand(tile_program(N, NB, "left", in_place=True))]


def _words(op: TileOp) -> str:
    match op:
        case Load():
            return f"{op.tile} = load({resolve(op.i, {})}, {resolve(op.j, {})})"
        case Store():
            return f"store {op.tile} to ({resolve(op.i, {})}, {resolve(op.j, {})})"
        case Potrf():
            return f"{op.c} = potrf({op.c})"
        case Trsm():
            return f"{op.c} = trsm({op.a}, {op.c})"
        case Syrk():
            return f"{op.c} −= {op.a} {op.a}ᵀ"
        case Gemm():
            return f"{op.c} −= {op.a} {op.b}ᵀ"
        case _:
            raise ValueError(f"op: got {op}, expected one of a factorization's")


def draw() -> Drawing:
    """The grid at the left, the program in columns at the right."""
    lines = program()
    columns = 3
    each = -(-len(lines) // columns)
    height = max(N * _CELL, each * _LINE) + _TOP + 42
    picture = Drawing(2 * _LEFT + N * _CELL + 40 + columns * 140, height, f"A matrix of order {N} in tiles of {NB}")
    picture.text(_LEFT, _TOP - 14, f"n = {N}, nb = {NB}", "title")
    grid = Grid(N, NB)
    for row in range(N):
        for column in range(row + 1):
            at = row // NB, column // NB
            colour = _VERMILION if at[0] == at[1] else _BLUE
            picture.box(_LEFT + column * _CELL, _TOP + row * _CELL, _CELL, _CELL, colour, shade=0.85)
    for i in range(-(-N // NB)):
        for j in range(i + 1):
            size = grid.size(j) * _CELL, grid.size(i) * _CELL
            x, y = _LEFT + j * NB * _CELL, _TOP + i * NB * _CELL
            picture.outline(x, y, *size)
            lower = y + size[1] * (0.75 if i == j else 0.5) + 4
            picture.text(x + size[0] * (0.3 if i == j else 0.5), lower, f"{i}, {j}", "small middle on")
    below = f"{-(-N // NB)} rows of tiles; the last has {grid.corner} rows"
    picture.text(_LEFT, _TOP + N * _CELL + 22, below, "small soft")
    left = _LEFT + N * _CELL + 40
    picture.text(left, _TOP - 14, "the program, left looking", "title")
    for number, line in enumerate(lines):
        column, place = divmod(number, each)
        x, y = left + column * 140, _TOP + 10 + place * _LINE
        picture.text(x + 14, y, str(number + 1), "small soft end")
        picture.text(x + 22, y, line, "small")
    words = "A, B, C, D: tiles in registers; (i, j): tiles in memory"
    picture.text(left, _TOP + N * _CELL + 22, words, "small soft")
    return picture
