"""What a cluster's workers do, called here: one GPU to one sweep, an end that comes by itself, parcels."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchchol.artifacts.cache import ArtifactCache, cache_key
from batchchol.errors import BatchcholError
from batchchol.measure.bench import Settings
from batchchol.tune.cluster import remote
from batchchol.tune.cluster.dispatch import Task, request
from batchchol.tune.cluster.parcels import Parcel, lacking, pack
from batchchol.tune.cluster.remote import Answer, Setup, answer

from ...sweep_benches import points

TESTS = Path(__file__).parents[2]
KEYS = [cache_key({"number": str(number)}) for number in range(4)]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(remote.tempfile, "gettempdir", lambda: str(tmp_path))
    return Setup("mine", "cpu", Settings(samples=2), 0.5, "sweep_benches:Planted", "GPU-0")


def closed(setup: Setup) -> bool:
    seat = remote._seats[setup]
    return seat._measurer._process is None and seat._claim is None


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_a_gpu_is_of_one_sweep_until_that_ends(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_IDLE_SECONDS", 0.05)
    first = points(1)
    assert [row.status for row in remote.measure(setup, first).rows] == ["correct"]
    other = replace(setup, sweep="another")
    monkeypatch.setattr(remote, "_IDLE_SECONDS", 100.0)
    wait_for(lambda: closed(setup))
    # Whoever was idle has given it up, and does not get it while somebody else has it.
    ran = remote.measure(other, [points(16)[number] for number in (0, 14, 1)])
    assert [row.status for row in ran.rows] == ["correct"]
    assert (len(ran.seconds), ran.failure) == (1, "the cache folder cannot be written")
    assert remote.measure(setup, first).failure == "GPU-0 is measured by another sweep: wait for its end"
    remote.end("another")
    assert other not in remote._seats
    wait_for(lambda: remote.measure(setup, first).rows)
    remote.end("mine")
    assert setup not in remote._seats


def test_a_failure_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(*arguments: Any) -> Answer:
        found: Answer = pickle.loads(answer(request(Task(*arguments))))
        return found

    assert sent(remote.stock, (KEYS,)).value == frozenset()
    assert "host" in repr(sent(remote.describe, ("sweep",)).value)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    absent = Setup("mine", "cpu", bench="sweep_benches:Absent")
    assert sent(remote.prepare, (absent,)).failure == "backend 'cuda' cannot be used: no GPU"
    remote.end("mine")


def test_a_parcel_has_each_payload_once_and_is_checked(tmp_path: Path) -> None:
    here, there = ArtifactCache(tmp_path / "here"), ArtifactCache(tmp_path / "there")
    module = here.store(b"two kernels", ".cubin")
    for number in (0, 1):
        here.link(KEYS[number], module, {"entry": f"k{number}"})
    here.put(KEYS[2], b"another", ".ptx", {"entry": "k2"}, "text")
    parcel: Parcel = pickle.loads(pickle.dumps(pack(here, KEYS)))
    assert parcel.keys == set(KEYS[:3])
    assert len(parcel.payloads) == 2
    assert lacking(there, KEYS) == set(KEYS)
    parcel.unpack(there)
    assert lacking(there, KEYS) == {KEYS[3]}
    for key in KEYS[:3]:
        sent, found = here.get(key), there.get(key)
        assert sent is not None
        assert found is not None
        assert (found.path.read_bytes(), found.metadata) == (sent.path.read_bytes(), sent.metadata)
    name = next(iter(parcel.payloads))
    damaged = replace(parcel, payloads={**parcel.payloads, name: b"two kernelz"})
    third = ArtifactCache(tmp_path / "third")
    with pytest.raises(BatchcholError, match="damaged on its way"):
        damaged.unpack(third)
    assert third.stored_keys() == []
