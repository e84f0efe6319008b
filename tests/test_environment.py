"""docs/environment.md lists every environment variable of the project, and none that there is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "docs" / "environment.md"
VARIABLE = re.compile(r"\bBATCHCHOL_[A-Z_]+\b")


def _texts() -> Iterator[str]:
    for folder in ("batchchol", "benchmarks", "kernelgen", ".ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", "", ".j2") and path.is_file():
                yield path.read_text()


def test_every_variable_is_listed() -> None:
    used = {name for text in _texts() for name in VARIABLE.findall(text)}
    listed = re.findall(r"^\| `(BATCHCHOL_\w+)` \|", LIST.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(used)


def test_variables_of_make_are_listed() -> None:
    settable = re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert settable
    assert all(f"`{name}" in LIST.read_text() for name in settable)
