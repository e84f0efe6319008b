"""docs/gate.md shows the tables of the data that were measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from .gate_evidence import DATA, tables

PAGE = DATA.parent / "docs" / "gate.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ and datasets/ are not part of an installed package")
def test_the_tables_are_those_of_the_data() -> None:
    made = tables()
    assert set(made) >= {"gate_noise", "gate_planted_h200"}
    page = Path(PAGE).read_text(encoding="utf-8")
    for name, lines in made.items():
        assert "\n".join(lines) in page, f"{name}: print the tables with python -m tests.gate_evidence"
