"""What asv leaves out of its results: written by the measured process, read back, and matched with the results."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from batchchol.asv_plugin import samples
from batchchol.asv_plugin.samples import SampleRecord, load_samples, of_result, record
from batchchol.errors import DataFileError

PARAMS = {"backend": "cuda", "n": 8, "block": None}
ABOUT = {"protocol": "queued", "conditions": {"before": {"gpu_clock_mhz": 1980}, "after": {"throttle": ""}}}
MORNING = datetime.datetime(2026, 11, 21, 9, tzinfo=datetime.UTC)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / samples.file_name("0123456789abcdef", "checkout-py3.11")
    monkeypatch.setenv(samples.FILE_VARIABLE, str(path))
    monkeypatch.setenv(samples.RUN_VARIABLE, "run 1")
    monkeypatch.setenv("ASV_COMMIT", "0123456789abcdef")
    monkeypatch.setenv("ASV_ENV_NAME", "checkout-py3.11")
    return path


def taken(minutes: float, run: str) -> SampleRecord:
    time = MORNING + datetime.timedelta(minutes=minutes)
    return SampleRecord(run, time, "0123", "checkout", "tiles.Tiles.device_factor", PARAMS, (1e-9,), {})


def test_a_record_is_read_back_as_it_was_taken(file: Path) -> None:
    assert file.name == "01234567-checkout-py3.11.samples.jsonl"
    before = datetime.datetime.now(datetime.UTC)
    record("tiles.Tiles.device_factor", PARAMS, [1e-9, 2e-9], ABOUT)
    record("floor.Floor.device_nothing", {}, [3e-6], {})
    first, second = load_samples(file)
    assert (dict(first.params), first.samples, dict(first.about)) == (PARAMS, (1e-9, 2e-9), ABOUT)
    assert (first.benchmark, second.benchmark) == ("tiles.Tiles.device_factor", "floor.Floor.device_nothing")
    assert (first.run, first.commit, first.environment) == ("run 1", "0123456789abcdef", "checkout-py3.11")
    assert before <= first.time <= second.time <= datetime.datetime.now(datetime.UTC)


def test_nothing_is_recorded_where_nobody_asked_for_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(samples.FILE_VARIABLE)
    record("tiles.Tiles.device_factor", PARAMS, [1e-9], ABOUT)
    assert not file.exists()


def test_a_process_outside_asv_records_without_a_commit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (samples.RUN_VARIABLE, "ASV_COMMIT", "ASV_ENV_NAME"):
        monkeypatch.delenv(variable)
    record("tiles.Tiles.device_factor", PARAMS, [1e-9], ABOUT)
    (only,) = load_samples(file)
    assert (only.run, only.commit, only.environment) == ("", "", "")


@pytest.mark.parametrize("damage", ["{", "[]", '{"run": ""}'], ids=["torn", "not an object", "incomplete"])
def test_a_damaged_line_is_named(file: Path, damage: str) -> None:
    record("tiles.Tiles.device_factor", PARAMS, [1e-9], ABOUT)
    with file.open("a") as opened:
        opened.write(damage + "\n")
    with pytest.raises(DataFileError, match="line 2: not a record of samples") as caught:
        load_samples(file)
    assert caught.value.path == file


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="nowhere"):
        load_samples(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], []),
        ([(1, "a"), (9, "a")], [(1, "a"), (9, "a")]),
        ([(1, "a"), (7, "b"), (9, "b")], [(7, "b"), (9, "b")]),
        ([(1, "a"), (9, "a"), (30, "dry run")], [(1, "a"), (9, "a")]),
        ([(1, "a"), (30, "dry run")], []),
    ],
    ids=["nothing recorded", "two rounds", "measured again", "a later dry run", "of other runs only"],
)
def test_a_result_has_the_rounds_of_the_run_that_made_it(
    records: list[tuple[float, str]], expected: list[tuple[float, str]]
) -> None:
    # asv began the last round at 8 minutes past, and says that it took two minutes.
    chosen = of_result((taken(*each) for each in records), MORNING + datetime.timedelta(minutes=8), 120.0)
    assert chosen == tuple(taken(*each) for each in expected)
