"""A measured number of a page is a claim: what is written by hand has none."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from batchchol.report.claims.listed import pages
from batchchol.report.claims.pages import unmarked

from .gate import evidence
from .pages import DOCS, ROOT, text

# A number and the unit of something that was measured.
UNIT = r"%|×(?! ?\d)|(?:[TG]?FLOP/s|[TG]B/s|MHz|[µnm]?s|minutes?|hours?|cycles|µJ|W)\b|times\b(?! as much)"
MEASURED = re.compile(rf"(?<![\w.])\d+(?:[.,]\d+)*\s*(?:{UNIT})")
# A cell of numbers alone, and the heads of columns that say what was measured, not what came of it.
NUMBERS = re.compile(r"[-+−]?\d+(?:[.,]\d+)*(?:[,;/] *\d+(?:[.,]\d+)*)*\Z")
CASES = ("n", "batch", "matrices", "matrices of a chunk", "points on a CPU", "on a GPU", "on a GPU: points, compiles")
# "100% is as fast as the machine allows" explains, and says nothing of a machine.
ALLOWED = ("100%",)

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ belongs to the clone")


@cache
def gate_tables() -> list[str]:
    """Those of docs/gate.md, which a test compares with the data."""
    return ["\n".join(lines) for lines in evidence.tables().values()]


def by_hand(page: str) -> str:
    """What is left of a page without claims, tables that other tests compare with data, and code."""
    for table in gate_tables():
        page = page.replace(table, "")
    without_blocks = re.sub(r"^```[\s\S]*?^```$|^    .*$", "", unmarked(page), flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "``", without_blocks)


def measured(page: str) -> list[str]:
    """The numbers of a text that look measured."""
    words = [word.strip() for word in MEASURED.findall(by_hand(page))]
    return [word for word in [*words, *numbers_of_tables(by_hand(page))] if word not in ALLOWED]


def numbers_of_tables(page: str) -> list[str]:
    """Those that fill a cell, but for cases: first columns and those of `CASES`."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        heads, _, *lines = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        found += [
            cell
            for line in lines
            for head, cell in zip(heads[1:], line[1:], strict=False)
            if head not in CASES and NUMBERS.match(cell)
        ]
    return found


@pytest.mark.parametrize(
    "page", [*pages(ROOT), ROOT / "datasets" / "README.md"], ids=lambda page: f"{page.parent.name}-{page.stem}"
)
def test_a_measured_number_is_a_claim(page: Path) -> None:
    """Make it a claim (docs/contributing.md), or say it without a number; settings stand in backticks."""
    assert measured(text(page)) == []


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("takes 3.2 µs, 41% of a copy", ["3.2 µs", "41%"]),
        ("takes <!--=a/b-->3.2<!--/--> µs, by `5%`, n = 24. ms", []),
        ("    $ takes 3 µs\n\nA table takes 4 µs.\n", ["4 µs"]),
        ("| n | batch | ours |\n| --- | --- | --- |\n| 8 | 1,024 | 3.5 |\n", ["3.5"]),
        ("| what | bound |\n| --- | --- |\n| ratio | ≤ 1.5 |\n", []),
        ("4.1 times as fast; 100 times as much; 3 × 3; sm_90", ["4.1 times"]),
    ],
)
def test_what_looks_measured(page: str, found: list[str]) -> None:
    assert measured(page) == found
