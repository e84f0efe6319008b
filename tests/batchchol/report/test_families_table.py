"""The table of families by order that pages show: made of the default table itself."""

from __future__ import annotations

import pytest

from batchchol.defaults.lookup import default_spec
from batchchol.report.claims import families


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (["warp"] * 20, "`warp` to 20"),
        (["thread"] * 12 + ["block"] * 11, "`thread` to 12, `block` to 23"),
        (
            ["thread"] * 12 + ["block"] * 2 + ["strip"] * 3 + ["block"] * 11,
            "`thread` to 12, `block` or `strip` to 17, ",
        ),
        (["warp", "thread"] * 8 + ["warp"], "`thread` or `warp` to 17"),
    ],
)
def test_families_of_few_orders_are_named_together(chosen: list[str], said: str) -> None:
    assert families.summary(chosen).startswith(said)


def test_a_line_says_what_calls_get() -> None:
    (line,) = (line for line in families.lines() if line[0] == "packed, float32, `fast`")
    assert len(line) == len(families.HEADS)
    last = line[2].rpartition(", ")[2]
    chosen = default_spec(
        families.LARGEST, target="cuda", chunk=4, arch=families.ARCH, batch=16_384, math="fast"
    ).family
    assert last == f"`{chosen}` to {families.LARGEST}"
