"""Entries of a cache as bytes, sent to another machine: checked there, and in place of older ones."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from batchchol.artifacts.archive import pack_bytes, unpack_bytes
from batchchol.artifacts.cache import ArtifactCache, cache_key
from batchchol.errors import BatchcholError

from .test_archive import KEYS, PAYLOADS, cache, empty

__all__ = ["cache", "empty"]


def test_entries_that_are_sent_have_each_payload_once_and_are_checked(cache: ArtifactCache, tmp_path: Path) -> None:
    there = ArtifactCache(tmp_path / "there")
    data = pack_bytes(cache, [KEYS["first"], KEYS["second"], cache_key({"name": "none"})])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert sorted(Path(name).suffix for name in archive.namelist()) == [".cubin", ".json", ".json"]
    unpack_bytes(data, there)
    assert there.stored_keys() == sorted([KEYS["first"], KEYS["second"]])
    for key in there.stored_keys():
        sent, found = cache.get(key), there.get(key)
        assert sent is not None
        assert found is not None
        assert (found.data, found.metadata) == (sent.data, sent.metadata)


def test_entries_that_are_sent_replace_later_ones(cache: ArtifactCache, tmp_path: Path) -> None:
    there = ArtifactCache(tmp_path / "there")
    there.put(KEYS["carried"], b"another compiler's", ".cubin", {"entry": "carried", "built": "2099-01-01"}, "")
    unpack_bytes(pack_bytes(cache, [KEYS["carried"]]), there)
    found = there.get(KEYS["carried"])
    assert found is not None
    assert found.data == PAYLOADS["module"]


@pytest.mark.parametrize("place", [40, -30])
def test_entries_that_are_damaged_on_their_way_are_not_taken(
    place: int, cache: ArtifactCache, tmp_path: Path
) -> None:
    there = ArtifactCache(tmp_path / "there")
    data = bytearray(pack_bytes(cache, [KEYS["cpu"]]))
    data[place] ^= 255
    with pytest.raises(BatchcholError, match=r"were damaged on their way .*: run the same command again"):
        unpack_bytes(bytes(data), there)
    assert there.stored_keys() == []


def test_nothing_is_sent_for_entries_that_are_not_there(cache: ArtifactCache, tmp_path: Path) -> None:
    assert pack_bytes(cache, [cache_key({"name": "none"})]) == b""
    unpack_bytes(b"", ArtifactCache(tmp_path / "there"))
    assert not (tmp_path / "there").exists()
