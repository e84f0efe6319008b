"""The script that times posv beside cuSOLVERDx: what the library chooses is called in turn, and checked."""

from __future__ import annotations

import pytest

from batchchol.backends import Backend

from ...times.solves import posv_beside
from ...times.solves.posv_beside import Asked, rows, said_of


def test_what_the_library_chooses_is_timed_in_turn(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posv_beside, "MANY_CALLS", 2)
    monkeypatch.setattr(posv_beside, "SAMPLES", 3)
    found = list(rows(cuda, Asked(16, 16_384, 2, "float32"), ("ieee",), 0))
    assert [(row["library"], row["math"]) for row in found] == [
        ("packed", "ieee"),
        ("arrays", "ieee"),
        ("floor", "ieee"),
        ("floor", "ieee"),
    ]
    assert all(float(row["seconds"]) >= float(row["floor_seconds"]) > 0 for row in found)
    for row in found[:2]:
        assert 0 < float(row["ratio"]) < 1
        assert row["kernel"].startswith("posv_f32_n16_")
        assert said_of(row).startswith(f"{row['library']} {row['math']} ")
