"""Kernels of a cache as one file to be carried to another machine, or as bytes to be sent there.

Both are a zip archive of the cache's own files: records, payloads, sources. Nothing in it is trusted: names that
are not those of cache files are refused, payloads are those of their hashes, no more is read than such files have,
whatever their headers say, and what is damaged is named and left out while the rest is taken.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from batchchol.artifacts.cache import PAYLOAD_BYTES, RECORD_BYTES, Artifact, ArtifactCache, Record, parse_record
from batchchol.errors import BatchcholError, CacheError, DataFileError
from batchchol.files import replacing

_MEMBER = re.compile(r"[0-9a-f]{64}\.[A-Za-z0-9]+")
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# The list of the members, of which each takes 50 bytes or more there and ten times as many in memory.
_DIRECTORY_BYTES = 1 << 25
_CHUNK_BYTES = 1 << 20
# What kernels unpack to: their code to less than 10 times its packed size, their sources to less than 50 times.
_LEAST_UNPACKED, _LARGEST_RATIO = 1 << 26, 100


@dataclass
class Packed:
    """What :func:`pack` wrote: `entries` of the cache, and how many `damaged` ones it left out."""

    entries: int = 0
    damaged: int = 0


@dataclass
class Unpacked:
    """What :func:`unpack` did: entries taken, those kept because they were newer here, and what was refused."""

    entries: int = 0
    newer_here: int = 0
    refused: dict[str, str] = field(default_factory=dict)


def architecture(artifact: Artifact) -> str:
    """The GPU architecture of an entry, or "cpu"."""
    return str(artifact.metadata.get("arch", "cpu"))


def pack(cache: ArtifactCache, file: Path, architectures: Collection[str] | None = None) -> Packed:
    """Write the entries of a cache to one file, which appears whole or not at all.

    Parameters
    ----------
    cache : ArtifactCache
        Where they are.
    file : Path
        The zip archive to write.
    architectures : collection of str or None
        Only the GPU kernels of these; None is everything.

    Raises
    ------
    CacheError
        If there is no such entry.
    DataFileError
        If the file cannot be written.
    """
    files = _by_stem(path.name for path in cache.folder.glob("*"))
    with replacing(file) as stream:
        packed = _pack(stream, cache, {key: files.get(key, []) for key in cache.stored_keys()}, architectures)
        if not packed.entries:
            wanted = f" of {', '.join(architectures)}" if architectures else ""
            damaged = f" (damaged entries: {packed.damaged})" if packed.damaged else ""
            raise CacheError(
                f"{cache.folder} has no kernels{wanted} to pack{damaged}, so {file} was not written: compile them "
                "first; `python -m batchchol cache info` says what is there"
            )
    return packed


def pack_bytes(cache: ArtifactCache, keys: Iterable[str]) -> bytes:
    """What a cache has of these entries, without their sources; empty if it has none."""
    stream = io.BytesIO()
    packed = _pack(stream, cache, {key: [f"{key}.json"] for key in keys})
    return stream.getvalue() if packed.entries else b""


def unpack_bytes(data: bytes, cache: ArtifactCache) -> None:
    """Take what :func:`pack_bytes` packed into a cache, where it replaces what other compilers made.

    Raises
    ------
    BatchcholError
        If an entry was damaged: that one is not taken.
    CacheError
        If the cache folder cannot be written.
    """
    if not data:
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            refused = _Unpacking(archive, cache, sys.maxsize, replace=True).run().refused
    except zipfile.BadZipFile as error:
        refused = {"all of it": str(error)}
    for name, reason in refused.items():
        raise BatchcholError(f"kernels were damaged on their way ({name} {reason}): run the same command again")


def unpack(file: Path, cache: ArtifactCache) -> Unpacked:
    """Take the entries of a packed file into a cache; entries that were built later here stay.

    Raises
    ------
    DataFileError
        If the file cannot be read, is no zip archive or has nothing in it, or unpacks to far more than kernels do.
    CacheError
        If the cache folder cannot be written.
    """
    try:
        with _Archive(file) as stream, zipfile.ZipFile(stream) as archive:
            if not archive.namelist():
                raise DataFileError(file, "archive", "has no kernels in it: pack it again where there are some")
            return _Unpacking(archive, cache, stream.most).run()
    except OSError as error:
        raise DataFileError(file, "archive", f"cannot be read: {error.strerror or error}") from error
    except zipfile.BadZipFile as error:
        raise DataFileError(
            file, "archive", f"is not a file that `cache pack` wrote, or not all of it: {error}"
        ) from error


def _pack(
    stream: BinaryIO,
    cache: ArtifactCache,
    files: Mapping[str, Sequence[str]],
    architectures: Collection[str] | None = None,
) -> Packed:
    """Write the entries of these keys, their payloads and these files, each file once."""
    packed, written = Packed(), set[str]()
    with zipfile.ZipFile(stream, "w") as archive:
        for key, names in files.items():
            artifact = cache.get(key)
            if artifact is None:
                packed.damaged += 1
            elif architectures is None or architecture(artifact) in architectures:
                packed.entries += 1
                for name in sorted({artifact.path.name, *names} - written):
                    written.add(name)
                    data = artifact.data if name == artifact.path.name else cache.read(name)
                    if data is not None:
                        archive.writestr(_member(name), data)
    return packed


def _member(name: str) -> zipfile.ZipInfo:
    """Without a time, so that equal kernels make equal archives."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info


def _by_stem(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of cache files by what stands before their suffix."""
    ordered = sorted(filter(_MEMBER.fullmatch, names))
    return {stem: list(alike) for stem, alike in groupby(ordered, lambda name: Path(name).stem)}


class _Archive(io.FileIO):
    """A regular file that limits each read: zipfile would read a list of members of any size at once."""

    def __init__(self, file: Path) -> None:
        # Opening a pipe would wait for its writer.
        super().__init__(file, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
        status = os.fstat(self.fileno())
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise DataFileError(file, "archive", "is no regular file: give the file that `cache pack` wrote")
        self.size = status.st_size
        self.most = max(_LEAST_UNPACKED, _LARGEST_RATIO * status.st_size)

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self.size - self.tell())
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > _DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"it lists more members than {_DIRECTORY_BYTES:,} bytes can name")
        return super().read(wanted)


class _Unpacking:
    """One call of `unpack`, which reads `most` bytes; entries `replace` later ones of the cache, or do not."""

    def __init__(self, archive: zipfile.ZipFile, cache: ArtifactCache, most: int, replace: bool = False) -> None:
        self.archive = archive
        self.cache = cache
        self.replace = replace
        self.most = self.left = most
        self.done = Unpacked()
        self.members: dict[str, zipfile.ZipInfo] = {}
        self.files: dict[str, list[str]] = {}
        self.stored: dict[str, Path] = {}

    def run(self) -> Unpacked:
        self._list()
        for key, record in self._records():
            self._take(key, record)
        return self.done

    def _list(self) -> None:
        """The members that may be read; names are those of cache files, so that none leads out of the folder."""
        names = Counter(info.filename for info in self.archive.infolist())
        for info in self.archive.infolist():
            if not _MEMBER.fullmatch(info.filename):
                self.done.refused[info.filename] = "is not the name of a cache file"
            elif names[info.filename] > 1:
                self.done.refused[info.filename] = "is there more than once"
            elif info.compress_type not in _COMPRESSIONS:
                self.done.refused[info.filename] = "is compressed in another way than `cache pack` does"
            else:
                self.members[info.filename] = info
        self.files = _by_stem(self.members)

    def _records(self) -> Iterator[tuple[str, Record]]:
        for name in sorted(self.members):
            if name.endswith(".json") and (data := self._read(name)) is not None:
                try:
                    yield Path(name).stem, parse_record(Path(name).stem, data)
                except ValueError as error:
                    self.done.refused[name] = str(error)

    def _take(self, key: str, record: Record) -> None:
        here = None if self.replace else self.cache.get(key)
        # Entries of one key are equally right; under a carried key, the latest compiler's counts.
        if here is not None and str(here.metadata.get("built", "")) >= str(record.metadata.get("built", "")):
            self.done.newer_here += 1
        elif payload := self._payload(record):
            source, suffix = self._source(key)
            self.cache.link(key, payload, record.metadata, source, suffix)
            self.done.entries += 1

    def _payload(self, record: Record) -> Path | None:
        """The stored payload of a record, or None if it is missing or damaged."""
        name = record.payload
        if name not in self.stored:
            data = self._read(name) if name in self.members else None
            if data is not None and record.names(data):
                self.stored[name] = self.cache.store(data, Path(name).suffix)
            elif name not in self.done.refused:
                missing = name not in self.members
                self.done.refused[name] = "is missing" if missing else "is damaged: it does not have its hash"
        return self.stored.get(name)

    def _source(self, key: str) -> tuple[str, str]:
        for name in self.files[key]:
            if not name.endswith(".json"):
                return (self._read(name) or b"").decode("utf-8", "replace"), Path(name).suffix
        return "", ".c"

    def _read(self, name: str) -> bytes | None:
        """The bytes of a member; None, and it is refused, if they are damaged or too many."""
        most = RECORD_BYTES if name.endswith(".json") else PAYLOAD_BYTES
        data = bytearray()
        try:
            with self.archive.open(self.members[name]) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    data += chunk
                    self._count(len(chunk))
                    if len(data) > most:
                        self.done.refused[name] = f"has more than {most:,} bytes, which no kernel has"
                        return None
        # What zipfile raises for damaged data and encryption.
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            self.done.refused[name] = f"is damaged: {error}"
            return None
        return bytes(data)

    def _count(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise DataFileError(
                Path(str(self.archive.filename)),
                "archive",
                f"unpacks to more than {self.most:,} bytes, which kernels do not: pack it again",
            )
