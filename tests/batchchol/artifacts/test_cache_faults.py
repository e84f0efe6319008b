"""The artifact cache: what is damaged, and what others could have changed, is never used."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from batchchol.artifacts.cache import Artifact, ArtifactCache, Record, cache_key, parse_record
from batchchol.errors import CacheError

KEY = cache_key({"source": "int f;", "compiler": "gcc 12"})
PAYLOAD = bytes(range(256)) * 40


@pytest.fixture
def store(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "store")


def put(store: ArtifactCache, payload: bytes = PAYLOAD) -> Artifact:
    return store.put(KEY, payload, ".so", {"seconds": 0.5}, "int f;\n")


def truncate_payload(store: ArtifactCache) -> None:
    path = put(store).path
    path.write_bytes(PAYLOAD[:1000])


def empty_payload(store: ArtifactCache) -> None:
    put(store).path.write_bytes(b"")


def flip_a_byte(store: ArtifactCache) -> None:
    path = put(store).path
    path.write_bytes(PAYLOAD[:5] + bytes([PAYLOAD[5] ^ 1]) + PAYLOAD[6:])


def delete_payload(store: ArtifactCache) -> None:
    put(store).path.unlink()


def payload_becomes_a_folder(store: ArtifactCache) -> None:
    path = put(store, b"another payload").path
    path.unlink()
    path.mkdir()


def delete_record(store: ArtifactCache) -> None:
    put(store)
    (store.folder / f"{KEY}.json").unlink()


def damaged_record(text: str) -> Callable[[ArtifactCache], None]:
    def damage(store: ArtifactCache) -> None:
        put(store)
        (store.folder / f"{KEY}.json").write_text(text)

    return damage


def payload_becomes_a_pipe(store: ArtifactCache) -> None:
    path = put(store).path
    path.unlink()
    os.mkfifo(path)


def record_becomes_a_pipe(store: ArtifactCache) -> None:
    put(store)
    (store.folder / f"{KEY}.json").unlink()
    os.mkfifo(store.folder / f"{KEY}.json")


def payload_becomes_a_link(store: ArtifactCache) -> None:
    path = put(store).path
    path.rename(store.folder.parent / "elsewhere")
    path.symlink_to(store.folder.parent / "elsewhere")


def others_may_write_the_payload(store: ArtifactCache) -> None:
    put(store).path.chmod(0o666)


def others_may_write_the_record(store: ArtifactCache) -> None:
    put(store)
    (store.folder / f"{KEY}.json").chmod(0o666)


def record_of_another_key(store: ArtifactCache) -> None:
    other = cache_key({"source": "another"})
    store.put(other, b"another payload", ".so", {}, "")
    (store.folder / f"{other}.json").rename(store.folder / f"{KEY}.json")


def point_outside(store: ArtifactCache) -> None:
    put(store)
    outside = store.folder.parent / "outside.so"
    outside.write_bytes(PAYLOAD)
    digest = hashlib.sha256(PAYLOAD).hexdigest()
    record = {"sha256": digest, "payload": "../outside.so", "metadata": {}}
    (store.folder / f"{KEY}.json").write_text(json.dumps(record))


DAMAGES = {
    "payload truncated": truncate_payload,
    "payload empty": empty_payload,
    "payload bit flipped": flip_a_byte,
    "payload deleted": delete_payload,
    "payload a folder": payload_becomes_a_folder,
    "payload a pipe": payload_becomes_a_pipe,
    "payload a link": payload_becomes_a_link,
    "payload writable by others": others_may_write_the_payload,
    "record a pipe": record_becomes_a_pipe,
    "record writable by others": others_may_write_the_record,
    "record of another key": record_of_another_key,
    "record deleted": delete_record,
    "record empty": damaged_record(""),
    "record cut": damaged_record('{"sha256": "00'),
    "record binary": damaged_record("\x00\x01"),
    "record a list": damaged_record("[]"),
    "record lacks fields": damaged_record('{"sha256": "00"}'),
    "record of wrong types": damaged_record('{"sha256": 1, "payload": 2, "metadata": 3}'),
    "record nested too deep": damaged_record("[" * 100_000),
    "record points outside": point_outside,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_entry_is_a_miss_and_is_rebuilt(
    store: ArtifactCache, damage: Callable[[ArtifactCache], None]
) -> None:
    damage(store)
    assert store.get(KEY) is None
    rebuilt = put(store)
    assert rebuilt.path.read_bytes() == PAYLOAD
    assert store.get(KEY) == rebuilt


def without_check(record: bytes) -> bytes:
    """A record as the first versions wrote it."""
    values = json.loads(record)
    del values["check"]
    return json.dumps(values, sort_keys=True, indent=1).encode()


def test_entries_of_the_first_versions_are_found(store: ArtifactCache) -> None:
    stored, record = put(store), store.folder / f"{KEY}.json"
    record.write_bytes(without_check(record.read_bytes()))
    assert store.get(KEY) == stored


def flips(record: bytes) -> Iterator[Record]:
    """What is read of a record in which one bit is another, for each bit where anything is."""
    for place in range(len(record)):
        for bit in range(8):
            flipped = bytearray(record)
            flipped[place] ^= 1 << bit
            with suppress(ValueError):
                yield parse_record(KEY, bytes(flipped))


def test_a_flipped_bit_changes_nothing_that_is_read_of_a_record(store: ArtifactCache) -> None:
    put(store)
    record = (store.folder / f"{KEY}.json").read_bytes()
    whole = parse_record(KEY, record)
    assert list(flips(record)), "in the name of the check"
    assert all(each == whole for each in flips(record))
    assert any(each != whole for each in flips(without_check(record))), "the check is what finds them"


@pytest.mark.parametrize("part", ["folder", "parent"])
def test_a_folder_that_others_can_change_is_refused(store: ArtifactCache, part: str) -> None:
    put(store)
    (store.folder if part == "folder" else store.folder.parent).chmod(0o777)
    message = r"code is not loaded from the cache folder .*store: others can write to .*chmod go-w.* BATCHCHOL_CACHE"
    for act in (lambda: store.get(KEY), lambda: put(store), store.prepare, lambda: store.keep_failed("int f", ".c")):
        with pytest.raises(CacheError, match=message):
            act()


def test_nothing_is_made_where_others_could_change_it(store: ArtifactCache) -> None:
    store.folder.parent.chmod(0o777)
    with pytest.raises(CacheError, match="others can write"):
        store.prepare()
    assert not store.folder.exists()


def test_the_folder_is_made_for_the_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = ArtifactCache(tmp_path / "a" / "b")
        stored = put(store)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", store.folder)] == [0o700, 0o700]
    assert store.get(KEY) == stored


def test_a_cache_that_cannot_be_written_is_read(store: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = put(store)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert store.get(KEY) == stored
    with pytest.raises(CacheError, match=r"Permission denied: .*set BATCHCHOL_CACHE"):
        store.prepare()


def as_plain_user(act: Callable[[], str]) -> str:
    """What an action of another user answers. It is forked: that user may not read this Python's own files."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writing, act().encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs for everyone")
def test_a_cache_that_root_installed_for_everyone_is_read_by_a_plain_user() -> None:
    # Not the test's own folder, which is for root alone.
    with tempfile.TemporaryDirectory() as name:
        store = ArtifactCache(Path(name))
        put(store)
        store.folder.chmod(0o755)

        def find_and_miss() -> str:
            found = store.get(KEY)
            assert found is not None
            with pytest.raises(CacheError) as caught:
                store.prepare()
            return f"{len(found.data)} {caught.value}"

        assert as_plain_user(find_and_miss) == (
            f"{len(PAYLOAD)} the cache cannot be used: {name}: Permission denied: make room or give write permission "
            "there, or set BATCHCHOL_CACHE to another folder"
        )
