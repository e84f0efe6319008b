"""The noise history: what is added is read again, whatever happened to the file in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchchol.asv_plugin.gate.history import RECENT, Control, History, add, read_history, wilson
from batchchol.errors import DataFileError


def control(location: float, key: str = "case", kind: str = "kernel", alarm: bool = False) -> Control:
    return Control("2026-11-23T00:00:00+00:00", "abc", key, kind, location, 0.01, 8, alarm)


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert read_history(path) == History()
    add(path, [control(0.001), control(-0.002, "other", "call", True)])
    add(path, [control(0.003)])
    expected = (control(0.001), control(-0.002, "other", "call", True), control(0.003))
    assert read_history(path) == History(expected)


@pytest.mark.parametrize(
    "line",
    [b'{"key": "ca', b"[]", b'{"kind": "kernel"}', b"\xff\xfe", b"[" * 100_000, b'{"kind": []}'],
)
def test_a_damaged_line_is_told_of_and_left_out(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "history.jsonl"
    add(path, [control(0.001)])
    # The writer was killed: its line has no end.
    path.write_bytes(path.read_bytes() + line)
    add(path, [control(0.002)])
    found = read_history(path)
    assert found.controls == (control(0.001), control(0.002))
    assert len(found.damaged) == 1
    assert "line 2 is left out" in found.damaged[0]


@pytest.mark.parametrize("damage", [("0.5", "NaN"), ("0.5", '"much"'), ("kernel", "engine"), ('"case"', "3")])
def test_a_record_that_says_nothing_useful_is_left_out(tmp_path: Path, damage: tuple[str, str]) -> None:
    path = tmp_path / "history.jsonl"
    add(path, [control(0.5)])
    path.write_text(path.read_text().replace(*damage))
    found = read_history(path)
    assert (len(found.controls), len(found.damaged)) == (0, 1)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.jsonl"
    add(path, [control(0.001)])
    before, write = path.read_bytes(), os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 50:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:-40])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(DataFileError, match="No space left"):
        add(path, [control(0.002)])
    assert path.read_bytes() == before


def test_what_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="writing"):
        add(tmp_path / "nowhere" / "history.jsonl", [control(0.001)])
    with pytest.raises(DataFileError, match="reading"):
        read_history(tmp_path)


def test_noise_is_the_spread_about_the_truth_of_three_or_more() -> None:
    # A bias counts: the median size, scaled to a normal standard deviation.
    history = History((control(0.01), control(0.02), control(0.9), control(0.5, "rare"), control(0.5, "rare")))
    assert history.noise_of("case") == pytest.approx(1.4826 * 0.02)
    assert history.noise_of("rare") is None
    assert history.noise_of("never") is None


def test_old_runs_are_forgotten() -> None:
    history = History((control(0.5),) * 1000 + (control(0.001),) * RECENT)
    assert history.noise_of("case") == pytest.approx(0.0014826)


def test_the_flaky_are_far_above_the_rest_of_their_kind() -> None:
    sizes = {"a": 0.001, "b": 0.0012, "c": 0.0009, "bad": 0.02, "worse": 0.05, "near": 0.0035}
    kernels = tuple(control(size, key) for key, size in sizes.items() for _ in range(3))
    calls = tuple(control(0.05, f"call {index}", "call") for index in range(3) for _ in range(3))
    assert History(kernels + calls).flaky() == ["worse", "bad"]
    # Three times the usual, and yet no change: below the floor.
    quiet = tuple(control(size / 100, key) for key, size in sizes.items() for _ in range(3))
    assert History(quiet).flaky() == []


def test_alarms_are_counted_with_wilsons_interval() -> None:
    history = History((control(0.0), control(0.1, alarm=True), control(0.0)))
    assert history.alarms() == (1, 3)
    # By hand, z = 1.959964: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n).
    assert wilson(1, 10) == pytest.approx((0.017876, 0.404150), abs=1e-6)
    assert wilson(0, 0) == (0.0, 1.0)
