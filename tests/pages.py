"""The pages of docs/, and their blocks of Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def text(path: Path) -> str:
    """What a page says."""
    return path.read_text(encoding="utf-8")


def blocks(page: str, section: str = "") -> list[str]:
    """The blocks of Python of a page, or of one section of it, but for examples with output."""
    whole = text(DOCS / f"{page}.md")
    if section:
        whole = whole.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^```python\n(.*?)^```$", whole, re.MULTILINE | re.DOTALL)
    return [block for block in found if not block.startswith(">>> ")]


def run(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the blocks of a page one after another, as they are read; what they assume is in `names`."""
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)
    return names
