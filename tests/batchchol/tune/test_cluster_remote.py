"""What a cluster's workers do, called here: one GPU to one sweep, and an end that comes by itself."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed")

from batchchol.errors import BatchcholError
from batchchol.measure.bench import Settings
from batchchol.tune.cluster import remote
from batchchol.tune.cluster.remote import Member, Seat, Setup, Station

from ...sweep_benches import points

TESTS = Path(__file__).parents[2]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(remote.tempfile, "gettempdir", lambda: str(tmp_path))
    return Setup("cpu", Settings(samples=2), 0.5, "sweep_benches:Planted", "GPU-0")


def closed(station: Station) -> bool:
    seat = station.seat
    assert seat is not None
    return seat._measurer._process is None and seat._claim is None


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def sitting(setup: Setup) -> Station:
    station = Station("mine")
    station.member = Member("w0", "host", (), 1, None, None, True)
    station.seat = Seat(setup)
    return station


def test_a_gpu_is_of_one_sweep_until_that_ends(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_IDLE_SECONDS", 0.05)
    first, mine, other = points(1), sitting(setup), sitting(setup)
    assert [row.status for row in mine.measure(first, b"").rows] == ["correct"]
    monkeypatch.setattr(remote, "_IDLE_SECONDS", 100.0)
    wait_for(lambda: closed(mine))
    # What was idle has given it up, and does not get it while another has it.
    ran = other.measure([points(16)[number] for number in (0, 14, 1)], b"")
    assert [row.status for row in ran.rows] == ["correct"]
    assert (len(ran.seconds), ran.failure) == (1, "the cache folder cannot be written")
    assert other.measure(first, b"").failure == "the cache folder cannot be written"
    assert mine.measure(first, b"").failure == "GPU-0 is measured by another sweep: wait for its end"
    other.teardown(None)
    wait_for(lambda: closed(other))
    assert sitting(setup).measure(first, b"").rows


def test_a_sweep_that_has_ended_measures_no_more(setup: Setup) -> None:
    station = sitting(setup)
    station.teardown(None)
    assert station.measure(points(2), b"").rows == ()


def test_another_device_is_refused(setup: Setup) -> None:
    station = sitting(replace(setup, device="another"))
    expected = "it measures 'a fake', and the data set is of 'another': give it another folder"
    assert station.measure(points(1), b"").failure == expected
    station.teardown(None)


def test_without_a_device_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    absent = sitting(Setup("cpu", bench="sweep_benches:Absent"))
    with pytest.raises(BatchcholError, match="backend 'cuda' cannot be used: no GPU"):
        absent.ready()
    with pytest.raises(BatchcholError, match="nothing to measure on"):
        Station("mine").ready()
