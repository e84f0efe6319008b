"""The cache as one file: packed, carried, damaged on the way, and unpacked."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import stat
import struct
import subprocess
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from batchchol.artifacts import archive as cache_archive
from batchchol.artifacts.archive import Packed, pack, unpack
from batchchol.artifacts.cache import ArtifactCache, cache_key
from batchchol.cli import main
from batchchol.errors import CacheError, DataFileError

KEYS = {name: cache_key({"name": name}) for name in ("cpu", "first", "second", "carried", "old")}
PAYLOADS = {"cpu": b"shared object " * 99, "module": b"cubin " * 999, "old": b"old cubin " * 99}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    """A kernel of a CPU, a module of two of a GPU, one of them also to be carried, and another GPU's."""
    store = ArtifactCache(tmp_path / "cache")
    store.put(KEYS["cpu"], PAYLOADS["cpu"], ".so", {"entry": "c"}, "int c;")
    module = store.store(PAYLOADS["module"], ".cubin")
    for name in ("first", "second", "carried"):
        metadata = {"entry": name, "arch": "sm_90", "built": "2026-11-21"}
        store.link(KEYS[name], module, metadata, "" if name == "carried" else f"// {name}", ".cu")
    store.put(KEYS["old"], PAYLOADS["old"], ".cubin", {"entry": "old", "arch": "sm_80"}, "// old", ".cu")
    return store


@pytest.fixture
def empty(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "empty")


@pytest.fixture
def file(tmp_path: Path, cache: ArtifactCache) -> Path:
    path = tmp_path / "kernels.zip"
    pack(cache, path)
    return path


def contents(store: ArtifactCache) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.folder.iterdir()}


def rewritten(file: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The archive with other members."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file


def test_everything_arrives(cache: ArtifactCache, empty: ArtifactCache, tmp_path: Path) -> None:
    assert pack(cache, tmp_path / "kernels.zip") == Packed(entries=5, damaged=0)
    done = unpack(tmp_path / "kernels.zip", empty)
    assert (done.entries, done.newer_here, done.refused) == (5, 0, {})
    assert contents(empty) == contents(cache)
    found = empty.get(KEYS["second"])
    assert found is not None
    assert (found.path.read_bytes(), found.metadata["entry"]) == (PAYLOADS["module"], "second")


def test_only_the_architectures_that_are_asked_for(
    cache: ArtifactCache, empty: ArtifactCache, tmp_path: Path
) -> None:
    assert pack(cache, tmp_path / "kernels.zip", ["sm_90", "sm_100"]).entries == 3
    unpack(tmp_path / "kernels.zip", empty)
    assert sorted(empty.stored_keys()) == sorted(KEYS[name] for name in ("first", "second", "carried"))
    assert sorted(path.suffix for path in empty.folder.iterdir()) == [".cu", ".cu", ".cubin", *[".json"] * 3]


def test_damaged_entries_are_not_packed(cache: ArtifactCache, tmp_path: Path) -> None:
    (cache.folder / f"{digest(PAYLOADS['module'])}.cubin").write_bytes(b"half")
    assert pack(cache, tmp_path / "kernels.zip") == Packed(entries=2, damaged=3)


def test_a_file_that_cannot_be_written_is_named(cache: ArtifactCache, tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="there is no folder") as caught:
        pack(cache, tmp_path / "no folder" / "kernels.zip")
    assert "no folder" in str(caught.value)


def test_packing_that_fails_leaves_the_file_as_it_was(
    cache: ArtifactCache, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "writestr", fail)
    with pytest.raises(KeyboardInterrupt):
        pack(cache, file)
    assert file.read_bytes() == before
    assert list(file.parent.glob(".partial-*")) == []


def test_unpacking_twice_changes_nothing(file: Path, empty: ArtifactCache) -> None:
    unpack(file, empty)
    before = contents(empty)
    done = unpack(file, empty)
    assert (done.entries, done.newer_here) == (0, 5)
    assert contents(empty) == before


@pytest.mark.parametrize(("built", "kept"), [("2027-01-01", True), ("2020-01-01", False)])
def test_the_newest_entry_of_a_key_counts(file: Path, empty: ArtifactCache, built: str, kept: bool) -> None:
    empty.put(KEYS["carried"], b"of another compiler", ".cubin", {"entry": "carried", "built": built}, "")
    unpack(file, empty)
    found = empty.get(KEYS["carried"])
    assert found is not None
    assert (found.path.read_bytes() == b"of another compiler") is kept


def test_damage_here_is_repaired_by_unpacking(file: Path, cache: ArtifactCache) -> None:
    before = contents(cache)
    (cache.folder / f"{digest(PAYLOADS['module'])}.cubin").unlink()
    (cache.folder / f"{KEYS['cpu']}.json").write_text("{}")
    assert unpack(file, cache).refused == {}
    assert contents(cache) == before


def test_a_damaged_payload_is_named_and_the_rest_is_taken(file: Path, empty: ArtifactCache) -> None:
    name = f"{digest(PAYLOADS['module'])}.cubin"
    done = unpack(rewritten(file, lambda members: members.update({name: b"other code"})), empty)
    assert done.refused == {name: "is damaged: it does not have its hash"}
    assert done.entries == 2
    assert name not in contents(empty)
    assert all(empty.get(KEYS[entry]) is None for entry in ("first", "second", "carried"))
    assert empty.get(KEYS["old"]) is not None


def test_bits_that_flipped_on_the_way(file: Path, empty: ArtifactCache) -> None:
    data = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        place = archive.getinfo(f"{KEYS['old']}.json").header_offset
    data[place + 120] ^= 0xFF
    file.write_bytes(data)
    done = unpack(file, empty)
    assert list(done.refused) == [f"{KEYS['old']}.json"]
    assert "is damaged" in done.refused[f"{KEYS['old']}.json"]
    assert (done.entries, empty.get(KEYS["old"])) == (4, None)


def test_a_payload_that_is_missing_is_named(file: Path, empty: ArtifactCache) -> None:
    name = f"{digest(PAYLOADS['old'])}.cubin"
    done = unpack(rewritten(file, lambda members: members.pop(name) and None), empty)
    assert done.refused == {name: "is missing"}
    assert done.entries == 4


@pytest.mark.parametrize(
    "name", ["../evil.so", "/etc/evil", "a/b.json", "c:\\evil", "readme", f"{'0' * 64}.", "x" * 64]
)
def test_names_that_lead_elsewhere_are_refused(file: Path, empty: ArtifactCache, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = unpack(rewritten(file, lambda members: members.update({name: b"evil"})), empty)
    assert done.refused == {name: "is not the name of a cache file"}
    assert done.entries == 5
    new = {path for path in tmp_path.rglob("*") if path not in before}
    assert {path.parent for path in new} <= {tmp_path, empty.folder}
    assert b"evil" not in contents(empty).values()


def test_records_that_lead_elsewhere_are_refused(file: Path, empty: ArtifactCache, tmp_path: Path) -> None:
    name = f"{KEYS['old']}.json"
    record = {"sha256": digest(b"evil"), "payload": "../evil.cubin", "metadata": {}}
    done = unpack(rewritten(file, lambda members: members.update({name: json.dumps(record).encode()})), empty)
    assert list(done.refused) == [name]
    assert not (tmp_path / "evil.cubin").exists()
    assert done.entries == 4


def test_a_name_that_is_there_twice_is_refused(file: Path, empty: ArtifactCache) -> None:
    name = f"{KEYS['old']}.json"
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(name, b"{}")
    assert unpack(file, empty).refused == {name: "is there more than once"}


def test_members_too_large_for_a_kernel_are_refused(
    file: Path, empty: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_archive, "PAYLOAD_BYTES", 5000)
    done = unpack(file, empty)
    name = f"{digest(PAYLOADS['module'])}.cubin"
    assert done.refused == {name: "has more than 5,000 bytes, which no kernel has"}
    assert done.entries == 2


@pytest.mark.parametrize("data", [b"", b"no archive", None], ids=["empty", "text", "truncated"])
def test_what_is_no_archive_is_refused(file: Path, empty: ArtifactCache, data: bytes | None) -> None:
    file.write_bytes(file.read_bytes()[:-200] if data is None else data)
    with pytest.raises(DataFileError, match="is not a file that `cache pack` wrote"):
        unpack(file, empty)
    assert not empty.folder.exists()


def test_a_missing_file_is_named(empty: ArtifactCache, tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"no such\.zip: archive: cannot be read: No such file"):
        unpack(tmp_path / "no such.zip", empty)


def test_a_cache_that_cannot_be_written_is_named(file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="BATCHCHOL_CACHE"):
        unpack(file, ArtifactCache(tmp_path / "file" / "cache"))


def set_sizes(file: Path, size: int) -> Path:
    """Have both headers of every member of an archive claim a size."""
    data = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        places = [info.header_offset + 22 for info in archive.infolist()]
        place = archive.start_dir
    while data[place : place + 4] == b"PK\x01\x02":
        places.append(place + 24)
        place += 46 + sum(struct.unpack_from("<3H", data, place + 28))
    for place in places:
        struct.pack_into("<I", data, place, size)
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_whose_header_lies_takes_no_memory(tmp_path: Path, empty: ArtifactCache, compression: int) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{KEYS['cpu']}.json", bytes(1 << 23))
    set_sizes(path, 100)
    tracemalloc.start()
    try:
        assert list(unpack(path, empty).refused) == [f"{KEYS['cpu']}.json"]
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
    assert not empty.folder.exists()


def bomb(path: Path, members: int, size: int) -> Path:
    """An archive of valid entries whose payloads are zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(members):
            key, payload = cache_key({"number": str(number)}), bytes(size + number)
            record = {"sha256": digest(payload), "payload": f"{digest(payload)}.so", "metadata": {}}
            archive.writestr(f"{key}.json", json.dumps(record))
            archive.writestr(f"{digest(payload)}.so", payload)
    return path


def test_an_archive_that_unpacks_to_far_more_than_kernels_is_refused(
    tmp_path: Path, empty: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_archive, "_LEAST_UNPACKED", 1 << 20)
    file = bomb(tmp_path / "bomb.zip", members=40, size=1 << 17)
    with pytest.raises(DataFileError, match=r"bomb\.zip: archive: unpacks to more than [\d,]+ bytes"):
        unpack(file, empty)
    written = sum(path.stat().st_size for path in empty.folder.iterdir())
    assert written < (1 << 20) + 100 * file.stat().st_size


def test_a_list_of_very_many_members_is_not_read(
    tmp_path: Path, empty: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_archive, "_DIRECTORY_BYTES", 100_000)
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        for number in range(3000):
            archive.writestr(f"{number}", b"")
    with pytest.raises(DataFileError, match="lists more members than 100,000 bytes can name"):
        unpack(tmp_path / "many.zip", empty)


def test_members_that_overlap_are_read_within_the_limit(
    tmp_path: Path, empty: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many names in the list, the bytes of all are those of one member."""
    monkeypatch.setattr(cache_archive, "_LEAST_UNPACKED", 1 << 16)
    payload, path = os.urandom(30_000), tmp_path / "overlap.zip"
    name = f"{digest(payload)}.so"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(name, payload)
        info = archive.getinfo(name)
        for number in range(100):
            other = copy.copy(info)
            other.filename = f"{cache_key({'number': str(number)})}.json"
            archive.filelist.append(other)
    done = unpack(path, empty)
    assert len(done.refused) == 100
    assert not empty.folder.exists()


@pytest.mark.parametrize("path", ["/dev/zero", "pipe", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, empty: ArtifactCache, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataFileError, match=r"is no regular file|Is a directory"):
        unpack(tmp_path / path, empty)


def test_an_archive_goes_through_a_pipe(cache: ArtifactCache, empty: ArtifactCache, tmp_path: Path) -> None:
    pipe, copied = tmp_path / "pipe", tmp_path / "copied.zip"
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", pipe, copied]) as reader:
        pack(cache, pipe)
        reader.wait(60)
    unpack(copied, empty)
    assert contents(empty) == contents(cache)


def test_a_device_is_not_replaced(cache: ArtifactCache, full_device: Path) -> None:
    with pytest.raises(DataFileError, match="full: writing: No space left"):
        pack(cache, full_device)
    assert stat.S_ISCHR(os.stat(full_device).st_mode)


def test_records_of_the_first_versions_are_taken(file: Path, empty: ArtifactCache) -> None:
    def strip(members: dict[str, bytes]) -> None:
        for name, data in members.items():
            if name.endswith(".json"):
                record = json.loads(data)
                del record["check"]
                members[name] = json.dumps(record).encode()

    assert unpack(rewritten(file, strip), empty).entries == 5
    assert empty.get(KEYS["cpu"]) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["unpack", "/dev/zero"], "/dev/zero: archive: is no regular file"),
        (["unpack", "/"], "/: archive: cannot be read: Is a directory"),
        (["pack", "/nonexistent/kernels.zip"], "there is no folder /nonexistent"),
    ],
)
def test_commands_say_what_is_wrong_in_a_line(
    cache: ArtifactCache,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("BATCHCHOL_CACHE", str(cache.folder))
    assert main(["cache", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("batchchol: error: ")
    assert message in said.err
    assert len(said.err.splitlines()) == 1


def test_a_long_list_of_what_was_refused_is_cut(
    file: Path, empty: ArtifactCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(file, lambda members: members.update({f"{number}{'x' * 1000}": b"" for number in range(100)}))
    monkeypatch.setenv("BATCHCHOL_CACHE", str(empty.folder))
    assert main(["cache", "unpack", str(file)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[-1]) == (21, "refused 80 more")
    assert max(map(len, lines)) < 200
