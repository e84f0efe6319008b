"""The check of the site finds what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .site import complaints, main


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="there.html#here">', ""),
        ('<a href="https://example.org/">', ""),
        ('<img src="data:image/png;base64,">', ""),
        ('<a href="gone.html">', "is not there"),
        ('<a href="there.html#gone">', "has no such anchor"),
        ('<script src="https://example.org/a.js">', "is loaded from another host"),
    ],
)
def test_links_are_followed(tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "there.html").write_text('<h1 id="here">')
    (tmp_path / "page.html").write_text(body)
    assert [line.rpartition(": ")[2] for line in complaints(tmp_path)] == [said] * bool(said)
    assert main(tmp_path) == bool(said)
