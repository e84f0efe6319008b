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


def blocks(page: str) -> list[str]:
    """The blocks of Python of a page, but for examples with output."""
    found = re.findall(r"^```python\n(.*?)^```$", text(DOCS / f"{page}.md"), re.MULTILINE | re.DOTALL)
    return [block for block in found if not block.startswith(">>> ")]


def run(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the blocks of a page one after another, as they are read; what they assume is in `names`."""
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)
    return names
