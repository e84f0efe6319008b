"""Checks the site that `make docs` made: every link leads somewhere, and no page asks another host for anything.

    python -m tests.site build/docs

The exit status is 1 if one does not, or does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

# What a browser loads without being asked to.
_LOADED = ("script", "img", "link", "iframe", "source")
_OTHER = re.compile(r"[a-z][a-z+.-]*:|//")


class Page(HTMLParser):
    """What a page has to link to, and what it links to: (element, target)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links = {"", "top"}, list[tuple[str, str]]()
        self.feed(path.read_text(encoding="utf-8", errors="replace"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep its anchors and links."""
        self.anchors |= {value for name, value in attrs if name in ("id", "name") and value}
        self.links += [(tag, value) for name, value in attrs if name in ("href", "src") and value]


def complaints(site: Path) -> Iterator[str]:
    """What is wrong with the pages of a folder."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for tag, link in page.links:
            if said := _complaint(path, tag, link, pages):
                yield f"{path.relative_to(site.resolve())}: {link[:80]}: {said}"


def _complaint(path: Path, tag: str, link: str, pages: Mapping[Path, Page]) -> str:
    if _OTHER.match(link):
        return "is loaded from another host" if tag in _LOADED and not link.startswith("data:") else ""
    name, _, anchor = link.partition("#")
    there = (path.parent / unquote(name.partition("?")[0])).resolve() if name else path
    if not there.exists():
        return "is not there"
    return "has no such anchor" if there in pages and unquote(anchor) not in pages[there].anchors else ""


def main(site: Path) -> int:
    """Print the complaints; 1 if there is one."""
    found = [*complaints(site)]
    print("\n".join(found) or f"{sum(1 for _ in site.rglob('*.html'))} pages: every link leads somewhere")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
