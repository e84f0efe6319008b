"""The pictures of docs/method.md are what the code draws now, and what they show of it is true."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from batchchol import Batch, Layout
from docs.pictures.__main__ import FOLDER, PICTURES
from docs.pictures.layouts import BATCH, LAYOUTS, N, places
from docs.pictures.lookings import TILES, steps


@pytest.mark.parametrize("name", PICTURES)
def test_committed_pictures_are_what_is_drawn(name: str) -> None:
    drawn = str(PICTURES[name]())
    assert (FOLDER / f"{name}.svg").read_text() == drawn, "run `python -m docs.pictures`"
    root = ElementTree.fromstring(drawn)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        at, size = (float(box.get("x", 0)), float(box.get("y", 0))), (box.attrib["width"], box.attrib["height"])
        assert 0 <= at[0] <= at[0] + float(size[0]) <= width
        assert 0 <= at[1] <= at[1] + float(size[1]) <= height


def test_the_page_shows_every_picture() -> None:
    shown = re.findall(r"\]\(pictures/(\w+)\.svg\)", (FOLDER.parent / "method.md").read_text())
    assert sorted(shown) == sorted(PICTURES)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
def test_elements_lie_where_batches_have_them(layout: Layout) -> None:
    numbered = np.arange(BATCH * N * N, dtype=np.float64).reshape(BATCH, N, N)
    memory = Batch.from_dense(numbered, layout).data.ravel()
    shown = [numbered[at] for at in places(layout)]
    padded = iter(memory)
    assert all(any(value == held for held in padded) for value in shown)


def test_steps_write_each_tile_as_often_as_the_order_says() -> None:
    tiles = TILES * (TILES + 1) // 2
    written = {looking: [len(step.written) for step in steps(looking)] for looking in ("right", "left", "top")}
    assert written == {"right": [10, 6, 3, 1], "left": [4, 3, 2, 1], "top": [1, 2, 3, 4]}
    for looking in written:
        final = [at for step in steps(looking) for at, made in step.written.items() if made != "updated"]
        assert sorted(final) == sorted(set(final))
        assert len(final) == tiles
