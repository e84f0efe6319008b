"""Temporary folders of builds: private, removed, and swept after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchchol.artifacts.scratch import PREFIX, scratch_folder
from batchchol.errors import CacheError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of the test's own."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield path.resolve()
    monkeypatch.undo()
    tempfile.tempdir = None


HOLDER = """
import subprocess, sys, time
from batchchol.artifacts.scratch import scratch_folder
with scratch_folder() as folder:
    compiler = subprocess.Popen(["sleep", "1000"], cwd=folder)
    print(folder, compiler.pid, flush=True)
    time.sleep(1000)
"""


def start_holder() -> tuple[subprocess.Popen[str], Path, int]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder, _, compiler = process.stdout.readline().rpartition(" ")
    return process, Path(folder), int(compiler)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_folder_is_empty_private_and_removed(place: Path) -> None:
    with scratch_folder() as folder:
        assert folder.is_relative_to(place)
        assert list(folder.iterdir()) == []
        assert folder.parent.stat().st_mode & 0o077 == 0
        (folder / "file").touch()
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_and_its_compiler_ended(place: Path) -> None:
    process, folder, compiler = start_holder()
    with scratch_folder():
        assert folder.exists(), "its process lives"
    with process:
        process.send_signal(signal.SIGKILL)
    assert folder.exists()
    assert is_running(compiler)
    with scratch_folder():
        assert not folder.exists()
    deadline = time.monotonic() + 60
    while is_running(compiler) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not is_running(compiler)
    assert list(place.iterdir()) == []


def test_folders_that_are_not_locked_yet_are_removed_when_old(place: Path) -> None:
    old, young, other = place / f"{PREFIX}old", place / f"{PREFIX}young", place / "other"
    for path in (old, young, other):
        path.mkdir()
        (path / "file").touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    with scratch_folder():
        assert sorted(path for path in place.iterdir() if path in (old, young, other)) == sorted([young, other])


def test_what_only_looks_like_a_folder_of_ours_stays(place: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").touch()
    (place / f"{PREFIX}link").symlink_to(precious)
    (place / f"{PREFIX}file").touch()
    with scratch_folder():
        pass
    assert sorted(path.name for path in place.iterdir()) == [f"{PREFIX}file", f"{PREFIX}link"]
    assert (precious / "lock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_folders_of_others_stay(place: Path) -> None:
    folder = place / f"{PREFIX}other"
    folder.mkdir()
    (folder / "lock").touch()
    for path in (folder, folder / "lock"):
        os.chown(path, 54321, 54321)
    with scratch_folder():
        pass
    assert (folder / "lock").exists()


def test_a_place_where_others_could_swap_the_folder_is_refused(place: Path) -> None:
    place.chmod(0o777)
    with pytest.raises(CacheError, match=r"nothing is built in .*others can write.* Or set TMPDIR"), scratch_folder():
        pytest.fail("it was made")
    place.chmod(0o1777)
    with scratch_folder():
        pass
