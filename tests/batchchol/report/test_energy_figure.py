"""Joules and time over n: what is drawn, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from batchchol.errors import BatchcholError
from batchchol.report import energy_figure

from ..compare.test_rows import a_row


def test_each_line_is_drawn_in_joules_and_in_time_and_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install -e '.[plots]'")
    rows = [replace(a_row(), n=n, batch=100, joules=n * 1e-4, seconds=n * 1e-6) for n in (32, 8)]
    png, svg = energy_figure.draw({"ours": rows, "peer": rows[:1]}, tmp_path / "e", title="T", caption="C")
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    text = "".join(ElementTree.parse(svg).getroot().itertext()) + svg.read_text()
    assert text.count("ours") == text.count("peer") >= 2
    with pytest.raises(BatchcholError, match="got no row of peer"):
        energy_figure.draw({"ours": rows, "peer": []}, tmp_path / "e", title="T")
