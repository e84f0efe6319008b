"""python -m docs.pictures: draws the pictures of docs/method.md beside this file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from batchchol.files import replace_file
from docs.pictures import families, layouts, lookings, tiles
from docs.pictures.svg import Drawing

FOLDER = Path(__file__).parent
PICTURES: Mapping[str, Callable[[], Drawing]] = {
    "layouts": layouts.draw,
    "tiles": tiles.draw,
    "lookings": lookings.draw,
    "families": families.draw,
}


def main() -> int:
    """Draw all of them."""
    for name, draw in PICTURES.items():
        replace_file(FOLDER / f"{name}.svg", str(draw()).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
