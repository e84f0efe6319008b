"""The entry of this machine in asv's machine file: stable, complete, and harmless to the other entries."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from batchchol.backends import Availability
from batchchol.cli.commits import machine as command
from batchchol.errors import BackendUnavailable, DataFileError
from batchchol.measure.machine import describe, machine_file, save, stable_name

DEVICE: dict[str, str | int] = {
    "cpu": "Intel(R) Xeon(R) Processor @ 2.50GHz",
    "simd": "avx2",
    "cores": 2,
    "memory_bytes": 16_776_000_000,
    "compiler": "gcc 12.2.0",
}
GPU: dict[str, str | int] = {
    "gpu": "NVIDIA H200",
    "driver": "570.1",
    "toolkit": "12.8",
    "gpu_clock_mhz": 1980,
    "memory_clock_mhz": 3201,
}
WHY_NOT = "PyCUDA is not installed"


@dataclass
class FakeBackend:
    reported: dict[str, str | int]

    def device(self) -> dict[str, str | int]:
        return self.reported


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeBackend]:
    """The backends that can be used; a test adds to them."""
    usable = {"cpu": FakeBackend({"backend": "cpu", **DEVICE})}

    def get_backend(name: str | None = None) -> FakeBackend:
        if (name or "cpu") not in usable:
            raise BackendUnavailable(WHY_NOT)
        return usable[name or "cpu"]

    monkeypatch.setattr("batchchol.backends.get_backend", get_backend)
    names = [Availability("cpu", True, ""), Availability("cuda", False, "")]
    monkeypatch.setattr("batchchol.backends.survey", lambda: names)
    return usable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: dict[str, FakeBackend]) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def call(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def entries(folder: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((folder / ".asv-machine.json").read_text())
    return loaded


def test_the_name_is_made_of_the_hardware_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    name = stable_name(DEVICE)
    monkeypatch.setattr("platform.node", lambda: "another-host")
    assert name == stable_name(dict(DEVICE)) == "intel-xeon-2-cores-avx2"
    assert stable_name({**DEVICE, **GPU}) == "intel-xeon-2-cores-avx2-nvidia-h200"
    for field, other in (("cpu", "Cortex-A72"), ("cores", 4), ("simd", "avx512")):
        assert stable_name({**DEVICE, field: other}) != name


def test_every_field_has_its_place() -> None:
    described = describe({**DEVICE, **GPU}, name="mine")
    assert (described["machine"], described["num_cpu"], described["ram"]) == ("mine", "2", "16 GiB")
    assert (described["gpu"], described["driver"], described["toolkit"]) == ("NVIDIA H200", "570.1", "12.8")
    assert (described["gpu_clock"], described["memory_clock"]) == ("1980 MHz", "3201 MHz")
    assert all(isinstance(value, str) for value in described.values()), "asv stores text only"


def test_the_command_is_idempotent_and_keeps_other_entries(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"machine": "other", "cpu": "another"}
    (home / ".asv-machine.json").write_text(json.dumps({"other": other, "version": 1}))
    assert call() == 0
    assert "written to" in capsys.readouterr().out
    first = (home / ".asv-machine.json").read_bytes()
    assert entries(home)["other"] == other
    assert call() == 0
    assert "already in" in capsys.readouterr().out
    assert (home / ".asv-machine.json").read_bytes() == first
    assert [path.name for path in home.iterdir()] == [".asv-machine.json"], "a temporary file was left behind"


def test_print_writes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--print", "--name", "mine") == 0
    shown = capsys.readouterr().out
    assert "machine      mine" in shown
    assert "simd         avx2" in shown
    assert list(home.iterdir()) == []


def test_a_machine_is_described_by_all_its_backends_under_one_name(
    home: Path, available: dict[str, FakeBackend], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--print") == 0
    assert WHY_NOT in capsys.readouterr().out
    available["cuda"] = FakeBackend({"backend": "cuda", **GPU})
    assert call("--print") == 0
    shown = capsys.readouterr().out
    assert WHY_NOT not in shown
    for described in ("intel-xeon-2-cores-avx2-nvidia-h200", "NVIDIA H200", "1980 MHz", "Intel(R) Xeon(R)"):
        assert described in shown
    available.clear()
    with pytest.raises(BackendUnavailable, match=WHY_NOT):
        call("--print")


@pytest.mark.parametrize(
    ("content", "named"),
    [("{", "line 1"), ('{"version": 2}', "version"), ("[]", "version"), ("{}", "version")],
)
def test_a_file_that_asv_could_not_read_is_named_and_left_alone(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "machines.json"
    path.write_text(content)
    with pytest.raises(DataFileError, match=named) as caught:
        save(describe(DEVICE), path)
    assert str(path) in str(caught.value)
    assert path.read_text() == content


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "machines.json"
    save(describe(DEVICE), path)
    before = path.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(DataFileError, match="no space left"):
        save(describe(DEVICE, name="other"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_asv_reads_what_was_written_and_writes_it_back_unchanged(home: Path) -> None:
    asv_machine = pytest.importorskip("asv.machine", reason="the suite's extra is not installed: there is no asv")
    mine = describe(DEVICE)
    save(mine, machine_file())
    save(mine | {"machine": "other"}, machine_file())
    before = entries(home)
    loaded = asv_machine.Machine.load(machine_name=mine["machine"])
    assert {field: getattr(loaded, field) for field in mine} == mine
    assert entries(home) == before
