"""What each step of the three orders of evaluation reads and writes, from the tile programs themselves."""

from __future__ import annotations

from dataclasses import dataclass

from docs.pictures.svg import COLOURS, Drawing
from kernelgen.programs.potrf import tile_program
from kernelgen.programs.tiles import Load, Loop, Potrf, Store, Trsm, expand, resolve
from kernelgen.schedules.axes import LOOKINGS

TILES = 4
_WORDS = {
    "right": "right looking: a column is factored, and all to its right is updated",
    "left": "left looking: a column is updated by all to its left, then factored",
    "top": "top looking: a row is updated by all above, then factored",
}
_BLUE, _VERMILION, _GREEN = COLOURS[:3]
_FILLS = {"factored": _VERMILION, "solved": _BLUE, "updated": _GREEN, "read": "done", "untouched": "empty"}
_CELL, _GAP, _LEFT, _ROW = 26, 34, 12, 160


@dataclass(frozen=True)
class Step:
    """The tiles that a step writes, and what it made of them last; and those that it only reads."""

    written: dict[tuple[int, int], str]
    read: frozenset[tuple[int, int]]


def steps(looking: str) -> list[Step]:
    """A step for each turn of the program's outer loop."""
    nb = 4
    (outer,) = tile_program(TILES * nb, nb, looking, in_place=True)
    assert isinstance(outer, Loop)
    return [_step(outer, turn) for turn in range(TILES)]


def _step(outer: Loop, turn: int) -> Step:
    written: dict[tuple[int, int], str] = {}
    read: set[tuple[int, int]] = set()
    made = "updated"
    for op in expand(outer.body, {outer.var: turn}):
        if isinstance(op, Load):
            if op.tile == "C":
                made = "updated"
            else:
                read.add(_at(op))
        elif isinstance(op, Potrf):
            made = "factored"
        elif isinstance(op, Trsm):
            made = "solved"
        elif isinstance(op, Store):
            written[_at(op)] = made
    return Step(written, frozenset(read - written.keys()))


def _at(op: Load | Store) -> tuple[int, int]:
    return resolve(op.i, {}), resolve(op.j, {})


def draw() -> Drawing:
    """A line for each order, a grid of tiles for each step."""
    side = TILES * _CELL
    width = 2 * _LEFT + TILES * side + (TILES - 1) * _GAP
    picture = Drawing(width, 3 * _ROW + 34, "The steps of right, left and top looking on 4 by 4 tiles")
    for line, looking in enumerate(LOOKINGS):
        top = 32 + line * _ROW
        picture.text(_LEFT, top - 10, _WORDS[looking], "title")
        for turn, step in enumerate(steps(looking)):
            left = _LEFT + turn * (side + _GAP)
            for i in range(TILES):
                for j in range(i + 1):
                    kind = step.written.get((i, j), "read" if (i, j) in step.read else "untouched")
                    picture.box(left + j * _CELL, top + i * _CELL, _CELL, _CELL, _FILLS[kind])
            picture.text(left + side - 52, top + 14, f"step {turn + 1}", "small soft")
    x, y = _LEFT, 3 * _ROW + 12
    for kind, fill in _FILLS.items():
        picture.box(x, y - 10, 13, 13, fill)
        picture.text(x + 19, y + 1, kind, "small")
        x += 96
    return picture
