"""Figures of what these scripts measured: from datasets/ROOM/NAME_h200.csv to docs/NAME_h200.png and .svg."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from batchchol.report.style import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[3]
Row = Mapping[str, str]


def draw(name: str, figure: Callable[[Sequence[Row]], Figure]) -> None:
    """Draw a data set, and say where; needs matplotlib."""
    (data,) = (ROOT / "datasets").glob(f"*/{name}_h200.csv")
    with data.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for path in save(lambda: figure(rows), ROOT / "docs" / f"{name}_h200"):
        print(path)
