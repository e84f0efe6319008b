"""The artifact cache: whole entries or none, whatever happens to the files and the processes."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batchchol.artifacts import cache
from batchchol.artifacts.cache import ArtifactCache, cache_key, default_folder
from batchchol.errors import CacheError

KEY = cache_key({"source": "int f;", "compiler": "gcc 12"})
PAYLOAD = bytes(range(256)) * 40


@pytest.fixture
def store(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "store")


def put(store: ArtifactCache, payload: bytes = PAYLOAD) -> cache.Artifact:
    return store.put(KEY, payload, ".so", {"seconds": 0.5}, "int f;\n")


def partial_files(folder: Path) -> list[Path]:
    return list(folder.glob(".partial-*"))


def test_key_ignores_the_order_of_its_parts() -> None:
    assert cache_key({"a": "1", "b": "2"}) == cache_key({"b": "2", "a": "1"})


@pytest.mark.parametrize(
    "other",
    [{"a": "1", "b": "3"}, {"a": "1"}, {"a": "1", "c": "2"}, {"a": '1","b":"2'}, {"a": "12", "b": ""}],
)
def test_key_tells_different_parts_apart(other: dict[str, str]) -> None:
    assert cache_key({"a": "1", "b": "2"}) != cache_key(other)


def test_entry_comes_back_whole(store: ArtifactCache) -> None:
    stored = put(store)
    found = store.get(KEY)
    assert found == stored
    assert found is not None
    assert found.path.read_bytes() == PAYLOAD
    assert found.path.name == hashlib.sha256(PAYLOAD).hexdigest() + ".so"
    assert found.metadata == {"seconds": 0.5}
    assert (store.folder / f"{KEY}.c").read_text() == "int f;\n"
    assert store.get(cache_key({"source": "another"})) is None


def test_suffixes_are_those_that_are_asked_for(store: ArtifactCache) -> None:
    artifact = store.put(KEY, PAYLOAD, ".cubin", {}, "__global__", ".cu")
    assert artifact.path.suffix == ".cubin"
    assert artifact.path.read_bytes() == PAYLOAD
    assert (store.folder / f"{KEY}.cu").read_text() == "__global__"


def test_a_new_entry_replaces_the_old_one(store: ArtifactCache) -> None:
    old = put(store, b"old")
    put(store, b"new")
    found = store.get(KEY)
    assert found is not None
    assert found.path.read_bytes() == b"new"
    assert old.path.read_bytes() == b"old", "a process may still be about to load the old payload"


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", [0, 1, 2], ids=["source", "payload", "record"])
def test_interrupted_write_leaves_the_old_entry_and_no_part_of_the_new(
    store: ArtifactCache, monkeypatch: pytest.MonkeyPatch, failure: BaseException, step: int
) -> None:
    old = put(store, b"old")
    replace, calls = os.replace, []

    def interrupted(source: str, target: Path) -> None:
        calls.append(target)
        if len(calls) > step:
            raise failure
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises((CacheError, KeyboardInterrupt)):
        put(store, b"new")
    assert len(calls) == step + 1
    assert store.get(KEY) == old
    assert old.path.read_bytes() == b"old"
    assert partial_files(store.folder) == []


def test_disk_that_fills_up_is_reported_and_leaves_nothing(store: ArtifactCache) -> None:
    script = """
import resource, sys
from pathlib import Path
from batchchol.artifacts.cache import ArtifactCache
from batchchol.errors import CacheError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    ArtifactCache(Path(sys.argv[1])).put(sys.argv[2], b"x" * 100_000, ".so", {}, "")
except CacheError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, store.folder, KEY], capture_output=True, text=True, check=True
    )
    assert str(store.folder) in done.stdout
    assert "File too large" in done.stdout
    assert "BATCHCHOL_CACHE" in done.stdout
    assert store.get(KEY) is None
    assert partial_files(store.folder) == []


def test_folder_that_cannot_be_made_is_named_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ArtifactCache(tmp_path / "file" / "cache")
    with pytest.raises(CacheError, match="BATCHCHOL_CACHE") as caught:
        store.prepare()
    assert str(store.folder) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_write_permission_is_named(store: ArtifactCache) -> None:
    store.folder.mkdir(mode=0o500)
    with pytest.raises(CacheError, match="Permission denied"):
        put(store)


@pytest.mark.parametrize("key", ["", "abc", "../" + "a" * 61, "A" * 64, KEY + "0"])
def test_malformed_key_is_refused(store: ArtifactCache, key: str) -> None:
    with pytest.raises(ValueError, match="key: got"):
        store.get(key)
    with pytest.raises(ValueError, match="key: got"):
        store.put(key, b"", ".so", {}, "")


@pytest.mark.parametrize("suffix", ["so", "", ".", "./x", ".json"])
def test_malformed_suffix_is_refused(store: ArtifactCache, suffix: str) -> None:
    with pytest.raises(ValueError, match="suffix: got"):
        store.put(KEY, b"", suffix, {}, "")
    assert not store.folder.exists()


def test_metadata_that_json_cannot_hold_are_refused(store: ArtifactCache) -> None:
    with pytest.raises(ValueError, match="metadata: expected"):
        store.put(KEY, b"", ".so", {"path": Path()}, "")
    assert not store.folder.exists()


WRITER = """
import sys
from pathlib import Path
from batchchol.artifacts.cache import ArtifactCache
folder, key, name, rounds = sys.argv[1:]
store = ArtifactCache(Path(folder))
print("ready", flush=True)
sys.stdin.readline()
for turn in range(int(rounds)):
    payload = f"{name} {turn} ".encode() * 20_000
    store.put(key, payload, ".so", {"start": f"{name} {turn} "}, "source")
    found = store.get(key)
    assert found is not None, "an entry that was written is never missing"
    text = found.path.read_text()
    assert text == found.metadata["start"] * 20_000, "payload and metadata of one entry"
"""


def start_writer(store: ArtifactCache, name: str, rounds: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, store.folder, KEY, name, str(rounds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_many_processes_write_and_read_one_key(store: ArtifactCache) -> None:
    writers = [start_writer(store, f"writer{index}", rounds=12) for index in range(4)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    found = store.get(KEY)
    assert found is not None
    assert found.path.read_text() == found.metadata["start"] * 20_000
    assert partial_files(store.folder) == []


def test_killed_writers_never_leave_half_an_entry(store: ArtifactCache) -> None:
    for turn in range(4):
        put(store, b"before")
        writer = start_writer(store, f"turn{turn}", rounds=100_000)
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
        time.sleep(0.01 + 0.013 * turn)
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=60)
        assert writer.returncode == -signal.SIGKILL
        found = store.get(KEY)
        assert found is not None
        text = found.path.read_text()
        assert text == "before" or text == found.metadata["start"] * 20_000


def test_temporary_files_of_killed_writers_are_removed_when_old(store: ArtifactCache) -> None:
    store.folder.mkdir()
    old, young = store.folder / ".partial-old", store.folder / ".partial-young"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    yesterday = time.time() - 86_400
    os.utime(old, (yesterday, yesterday))
    put(store)
    assert partial_files(store.folder) == [young]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"BATCHCHOL_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"BATCHCHOL_CACHE": "~/c", "HOME": "/h"}, "/h/c"),
        ({"BATCHCHOL_CACHE": "", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/batchchol"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/batchchol"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/batchchol"),
        ({"HOME": "/h"}, "/h/.cache/batchchol"),
    ],
)
def test_default_folder(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str) -> None:
    for name in ("BATCHCHOL_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_folder() == Path(expected)
    assert ArtifactCache().folder == Path(expected)


def test_relative_folder_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCHCHOL_CACHE", "here")
    assert default_folder() == tmp_path / "here"
