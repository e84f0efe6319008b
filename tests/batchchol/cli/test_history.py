"""`python -m batchchol history` and `publish`: from asv's results to a store, a table, files and pages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from batchchol.cli import main

pytest.importorskip("asv", reason="the suite's extra is not installed: there is no asv")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the published results of an H200."""
    shutil.copytree(ROOT / "datasets" / "asv_h200", tmp_path / ".asv" / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_results_become_a_store_a_table_and_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--export", "all.parquet"]) == 0
    said = capsys.readouterr().out
    found = re.search(r"\.asv/history\.sqlite: (\d+) new results\n", said)
    assert found
    results = int(found[1])
    assert re.search(r"h200, checkout-py3\.12: \d+ cases, \d+ commits, \d+ steady", said)
    assert re.search(r"faster     canonical\.Canonical\.device_factor\(n = 33\)  .* between \w{8} and d8a56fac", said)
    import pandas as pd

    assert len(pd.read_parquet("all.parquet")) == results > 65
    shutil.rmtree(place / ".asv" / "results")
    assert main(["history", "--export", "all.csv", "--thin", "1"]) == 0
    assert "0 new results" in capsys.readouterr().out
    assert len((place / "all.csv").read_text().splitlines()) == results + 1


def test_the_committed_pages_are_those_of_the_committed_results(place: Path) -> None:
    assert main(["publish", "--out", "pages"]) == 0
    made = {path.name: path.read_bytes() for path in (place / "pages").iterdir()}
    assert made == {path.name: path.read_bytes() for path in (ROOT / "docs" / "history").iterdir()}


def test_other_formats_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--export", "all.xlsx"]) == 2
    assert "--export: got 'all.xlsx', expected a file that ends in .parquet or .csv" in capsys.readouterr().err
    assert not (place / ".asv" / "history.sqlite").exists()
