"""Commits that data name and the history lacks: they were measured on branches that were rebased afterwards."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

FILE = Path("datasets") / "rebased.csv"


@cache
def rebased(root: Path) -> Mapping[str, str]:
    """From such a commit to the one that has its change now; empty where that is no longer known."""
    path = root / FILE
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {line["commit"]: line["now"] for line in csv.DictReader(lines)}


def listed_commits(named: Iterable[str], root: Path) -> str:
    """Commits as data name them, separated by commas, with what became of those that the history lacks."""
    parts = sorted({each for several in named for each in several.split(", ")})
    return ", ".join(_told(each, rebased(root)) for each in parts)


def _told(commit: str, known: Mapping[str, str]) -> str:
    if commit not in known:
        return commit
    return f"{commit} (rebased since: {known[commit]})" if known[commit] else f"{commit} (of a branch, lost)"
