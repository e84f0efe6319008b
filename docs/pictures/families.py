"""Who works on a matrix, by family: a colour and a number for each worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs.pictures.svg import COLOURS, Drawing, on
from kernelgen.gpu import WARP
from kernelgen.schedules.block import BlockShape
from kernelgen.schedules.strip import StripShape
from kernelgen.schedules.warp import WarpShape

TILES = 4
_TILE = 26
_SIDE = TILES * _TILE
_LEFT, _TOP, _PANEL = 14, 46, 150
Worker = Callable[[int, int], int]


def _matrix(picture: Drawing, x: float, y: float, worker: Worker, tile: float = _TILE) -> None:
    """A lower triangle of tiles, each in the colour of its worker and with its number where there is room."""
    for i in range(TILES):
        for j in range(i + 1):
            who = worker(i, j)
            colour = COLOURS[who % len(COLOURS)]
            picture.box(x + j * tile, y + i * tile, tile, tile, colour)
            if tile == _TILE:
                picture.text(x + (j + 0.5) * tile, y + (i + 0.5) * tile + 4, str(who), f"small middle {on(colour)}")


def _thread(picture: Drawing, x: float, y: float) -> None:
    small = _TILE / 2 - 1
    for number in range(4):
        row, column = divmod(number, 2)
        _matrix(picture, x + column * _SIDE / 2, y + row * _SIDE / 2, lambda *_, who=number: who, small)


def _block(picture: Drawing, x: float, y: float) -> None:
    shape = BlockShape(TILES * 8, 8, WARP, "float32")
    first = [sum(shape.side - k for k in range(column)) for column in range(shape.side)]
    for behind in (2, 1, 0):
        _matrix(picture, x + 7 * behind, y - 7 * behind, lambda i, j: first[j] + i - j)


def _strip(picture: Drawing, x: float, y: float) -> None:
    shape = StripShape(TILES * 16, 7, 0)
    warps = shape.strip_warps
    _matrix(picture, x, y, lambda i, j: shape.first_warps[j] + (i - j) % warps[j])


def _warp(picture: Drawing, x: float, y: float) -> None:
    shape = WarpShape(TILES * 16, 1, 2, 1)
    of_row = {block: warp for warp in range(shape.warps) for block in shape.rows(warp)}
    _matrix(picture, x, y, lambda i, _: of_row[i])


def _whole(picture: Drawing, x: float, y: float) -> None:
    for j in range(TILES):
        height = (TILES - j) * _TILE
        picture.box(x + j * _TILE, y + j * _TILE, _TILE, height, "empty" if j > 1 else COLOURS[4])
    for i in range(2, TILES):
        picture.box(x + 2 * _TILE, y + i * _TILE, _TILE, _TILE, COLOURS[i - 2])
        picture.text(x + 2.5 * _TILE, y + (i + 0.5) * _TILE + 4, str(i - 2), f"small middle {on(COLOURS[i - 2])}")


def _shared(picture: Drawing, x: float, y: float) -> None:
    for i in range(TILES):
        for j in range(i + 1):
            picture.box(x + j * _TILE, y + i * _TILE, _TILE, _TILE, "empty")
    at, small = (2, 1), _TILE / 4
    for element in range(16):
        row, column = divmod(element, 4)
        left, top = x + at[1] * _TILE + column * small, y + at[0] * _TILE + row * small
        picture.box(left, top, small, small, COLOURS[element % 5], frame="")
    picture.outline(x + at[1] * _TILE, y + at[0] * _TILE, _TILE, _TILE)


FAMILIES: Mapping[str, tuple[Callable[[Drawing, float, float], None], tuple[str, ...]]] = {
    "thread": (_thread, ("a thread (or SIMD lane)", "to each matrix, all of", "it in its registers")),
    "block": (
        _block,
        ("a thread to each tile;", "lanes of a warp have the", "same tile of matrices", "side by side"),
    ),
    "strip": (_strip, ("the warps of a column", "of tiles take turns with", "its tiles; updates on", "tensor cores")),
    "warp": (_warp, ("one or two warps to a", "matrix, all of it in their", "registers; updates on", "tensor cores")),
    "whole": (
        _whole,
        ("a block to a matrix in", "shared memory; warps", "update a panel's rows,", "threads solve one each"),
    ),
    "shared": (_shared, ("a thread to each", "element of a tile;", "operands in shared", "memory")),
}


def draw() -> Drawing:
    """A panel for each family."""
    width = 2 * _LEFT + len(FAMILIES) * _PANEL - 6
    picture = Drawing(width, _TOP + _SIDE + 92, "Which threads work on a matrix in each of the six families")
    for number, (name, (paint, words)) in enumerate(FAMILIES.items()):
        x = _LEFT + number * _PANEL
        picture.text(x, 22, name, "title")
        paint(picture, x, _TOP + 4)
        for line, text in enumerate(words):
            picture.text(x, _TOP + _SIDE + 26 + 16 * line, text, "small soft")
    return picture
