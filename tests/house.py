"""Draws docs/architecture.png from the code: the rooms, their size, and who imports from whom.

python -m tests.house
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.png"


def layers() -> list[str]:
    """The rooms and modules of batchchol, the highest first, as the linter knows them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (rooms,) = (found["layers"] for found in settings["contracts"] if found.get("containers") == ["batchchol"])
    return [name.strip() for layer in rooms for name in layer.split("|")]


def lines(name: str) -> int:
    """The lines of a room's Python files."""
    path = ROOT / "batchchol" / name
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    return sum(len(file.read_text().splitlines()) for file in files)


def imports() -> Counter[tuple[str, str]]:
    """How many modules of one room import from another one; kernelgen is a room too."""
    import grimp

    graph = grimp.build_graph("batchchol", "kernelgen", cache_dir=None, exclude_type_checking_imports=True)
    pairs = {
        (importer, _room(importer), _room(imported))
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    }
    return Counter((one, other) for _, one, other in pairs if one != other)


def _room(module: str) -> str:
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "batchchol" else package


def draw(path: Path) -> None:
    """A square for each pair of rooms: above the diagonal are imports from a room further down, and below none."""
    from matplotlib import pyplot as plt

    rooms, counted = [*layers(), "kernelgen"], imports()
    figure, axes = plt.subplots(figsize=(9, 7.4), layout="constrained")
    for row, one in enumerate(rooms):
        axes.axhspan(row - 0.5, row + 0.5, color="0.97" if row % 2 else "white", lw=0)
        for column, other in enumerate(rooms):
            if row == column:
                axes.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, color="0.8", lw=0))
            elif count := counted[one, other]:
                shade = min(1.0, 0.25 + count / 40)
                axes.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, color=(0.12, 0.35, 0.6, shade), lw=0))
                axes.text(
                    column, row, str(count), ha="center", va="center", fontsize=8, color="w" if shade > 0.5 else "k"
                )
    named = [f"{room}  {lines(room):,}" if room != "kernelgen" else room for room in rooms]
    axes.set(xlim=(-0.5, len(rooms) - 0.5), ylim=(len(rooms) - 0.5, -0.5))
    axes.set_xticks(range(len(rooms)), rooms, rotation=60, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(rooms)), named)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xlabel("modules of the room at the left (its lines beside it) that import from the room above")
    figure.savefig(path, dpi=110)


def main() -> int:
    """Draw the picture that the documents show."""
    draw(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
