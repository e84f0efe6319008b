"""The commits that data name: each is in the history, or listed with what became of it."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from batchchol.report.claims.rebased import FILE, listed_commits, rebased

ROOT = Path(__file__).parents[1]


def history() -> list[str]:
    """All commits of HEAD, or none where this is no clone, or a shallow one."""
    git = ("git", "-C", str(ROOT))
    shallow = subprocess.run(
        (*git, "rev-parse", "--is-shallow-repository"), capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        return []
    return subprocess.run((*git, "rev-list", "HEAD"), capture_output=True, text=True, check=True).stdout.split()


def commits(path: Path) -> Iterator[str]:
    if path.suffix == ".parquet":
        columns = {"commit"} & set(pq.read_schema(path).names)
        named = {each for name in columns for each in pq.read_table(path, columns=[name])[name].unique().to_pylist()}
    else:
        with path.open(encoding="utf-8", newline="") as lines:
            named = {line.get("commit") for line in csv.DictReader(lines)}
    for each in filter(None, named):
        yield from re.findall(r"\b[0-9a-f]{7,40}", each)


@pytest.mark.skipif(not history(), reason="needs the whole history")
def test_commits_of_data_are_in_the_history_or_known_to_be_rebased() -> None:
    data = [path for path in sorted((ROOT / "datasets").glob("*/*")) if path.suffix in (".csv", ".parquet")]
    named = {commit for path in data if path.name != FILE.name for commit in commits(path)}
    known = history()
    gone = {commit for commit in named if not any(each.startswith(commit) for each in known)}
    assert gone <= {*rebased(ROOT)}
    assert all(any(each.startswith(now) for each in known) for now in rebased(ROOT).values() if now)


def test_a_page_says_what_became_of_a_commit() -> None:
    assert listed_commits(["9e5cb7577f59, b38cd07", "ea62dd9a4ca1"], ROOT) == (
        "9e5cb7577f59, b38cd07 (rebased since: bfc4d055a210), ea62dd9a4ca1 (of a branch, lost)"
    )
