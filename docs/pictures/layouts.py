"""Where the elements of a batch lie in memory, by layout."""

from __future__ import annotations

import numpy as np

from batchchol.batches.layouts import array_shape, dense_view
from docs.pictures.svg import COLOURS, Drawing, on
from kernelgen import Layout

N, BATCH, LANES = 2, 8, 4
LAYOUTS = {
    "canonical: one matrix after another": Layout.canonical(),
    "interleaved: matrix index fastest over the whole batch": Layout.interleaved(),
    f"chunked: interleaved inside chunks of {LANES}": Layout.chunked(LANES),
}
_CELL, _LEFT, _STEP = 22, 12, 76
# The element that all lanes read at a time.
_READ = (1, 0)


def places(layout: Layout) -> list[tuple[int, int, int]]:
    """Of each place in memory, one after another: which matrix, row and column it has; without padding."""
    shape = array_shape(N, BATCH, layout)
    memory = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    view = dense_view(memory, layout).reshape(-1, N, N)
    found = sorted((place, at) for at, place in np.ndenumerate(view) if at[0] < BATCH)
    return [(matrix, row, column) for _, (matrix, row, column) in found]


def draw() -> Drawing:
    """A line of memory for each layout, a colour for each matrix of the first lanes, grey for the others."""
    width = 2 * _LEFT + N * N * BATCH * _CELL
    picture = Drawing(width, 3 * _STEP + 44, f"{BATCH} matrices of order {N} in memory, in three layouts")
    for line, (words, layout) in enumerate(LAYOUTS.items()):
        top = 30 + line * _STEP
        picture.text(_LEFT, top - 8, words, "title")
        cells = places(layout)
        for place, (matrix, row, column) in enumerate(cells):
            x = _LEFT + place * _CELL
            own = matrix < LANES
            picture.box(x, top, _CELL, _CELL, COLOURS[matrix] if own else "empty")
            picture.text(
                x + _CELL / 2, top + 15, f"{row}{column}", f"small middle {on(COLOURS[matrix]) if own else 'soft'}"
            )
        read = [place for place, (matrix, *at) in enumerate(cells) if matrix < LANES and tuple(at) == _READ]
        for place in read:
            picture.outline(_LEFT + place * _CELL, top, _CELL, _CELL)
        far = read[-1] - read[0] + 1
        picture.text(_LEFT, top + _CELL + 15, f"one read of {LANES} lanes spans {far} elements", "small soft")
    words = (
        f"colours: matrices 0 to {LANES - 1}, a lane each; grey: others; numbers: row and column; framed: one read"
    )
    picture.text(_LEFT, 3 * _STEP + 28, words, "small soft")
    return picture
