"""docs/architecture.md names the rooms that there are, in the order that the linter keeps."""

from __future__ import annotations

import re

from .house import ROOT, layers

ENTRIES = 25


def test_documented_rooms_are_those_that_the_linter_orders() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().split("| --- | --- |")[1].split("\n\n")[0]
    documented = [name for cell in re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE) for name in cell.split()]
    assert [name.rstrip("/") for name in documented] == layers()


def test_the_hallway_stays_short() -> None:
    assert len([entry for entry in (ROOT / "batchchol").iterdir() if entry.name != "__pycache__"]) <= ENTRIES
