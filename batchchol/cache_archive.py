"""The kernels of a cache as one file, to be carried to another machine.

The file is a zip archive of the cache's own files: records, payloads, sources. Nothing of it is believed: names that
are not those of cache files are refused, payloads are those of their hashes, and what is damaged is named and left
out while the rest is taken.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from batchchol.cache import Artifact, ArtifactCache, Record, parse_record
from batchchol.errors import CacheError, DataFileError

_MEMBER = re.compile(r"[0-9a-f]{64}\.[A-Za-z0-9]+")
# Larger than any kernel's code: what claims more is an attack on the memory, or damaged.
_LARGEST_MEMBER = 1 << 28


@dataclass(frozen=True)
class Packed:
    """What :func:`pack` wrote: `entries` of the cache, and how many `damaged` ones it left out."""

    entries: int
    damaged: int


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
    try:
        descriptor, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=".partial-")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                packed = _write(cache, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED), architectures)
                os.fchmod(stream.fileno(), 0o644)
            _require_entries(packed, cache, file, architectures)
            os.replace(name, file)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise DataFileError(file, "archive", f"cannot be written: {error.strerror or error}") from error
    return packed


def _require_entries(packed: Packed, cache: ArtifactCache, file: Path, architectures: Collection[str] | None) -> None:
    """Refuse an archive without kernels."""
    if not packed.entries:
        wanted = f" of {', '.join(architectures)}" if architectures else ""
        damaged = f" (damaged entries: {packed.damaged})" if packed.damaged else ""
        raise CacheError(
            f"{cache.folder} has no kernels{wanted} to pack{damaged}, so {file} was not written: compile them first; "
            "`python -m batchchol cache info` says what is there"
        )


def unpack(file: Path, cache: ArtifactCache) -> Unpacked:
    """Take the entries of a packed file into a cache; entries that were built later here stay.

    Raises
    ------
    DataFileError
        If the file cannot be read, is no zip archive or has nothing in it.
    CacheError
        If the cache folder cannot be written.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if not archive.namelist():
                raise DataFileError(file, "archive", "has no kernels in it: pack it again where there are some")
            return _Unpacking(archive, cache).run()
    except OSError as error:
        raise DataFileError(file, "archive", f"cannot be read: {error.strerror or error}") from error
    except zipfile.BadZipFile as error:
        raise DataFileError(
            file, "archive", f"is not a file that `cache pack` wrote, or not all of it: {error}"
        ) from error


def _write(cache: ArtifactCache, archive: zipfile.ZipFile, architectures: Collection[str] | None) -> Packed:
    entries = damaged = 0
    written: set[str] = set()
    files = _by_stem(path.name for path in cache.folder.glob("*"))
    with archive:
        for key in cache.stored_keys():
            artifact = cache.get(key)
            if artifact is None:
                damaged += 1
            elif architectures is None or architecture(artifact) in architectures:
                entries += 1
                for name in (artifact.path.name, *files[key]):
                    if name not in written:
                        written.add(name)
                        archive.write(cache.folder / name, name)
    return Packed(entries, damaged)


def _by_stem(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of cache files by what stands before their suffix."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        if _MEMBER.fullmatch(name):
            found[Path(name).stem].append(name)
    return found


class _Unpacking:
    """One call of `unpack`."""

    def __init__(self, archive: zipfile.ZipFile, cache: ArtifactCache) -> None:
        self.archive = archive
        self.cache = cache
        self.done = Unpacked()
        self.members: dict[str, zipfile.ZipInfo] = {}
        self.files: dict[str, list[str]] = {}
        self.stored: dict[str, Path] = {}

    def run(self) -> Unpacked:
        self._list()
        records = dict(self._records())
        for key, record in records.items():
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
            elif info.file_size > _LARGEST_MEMBER:
                self.done.refused[info.filename] = f"has {info.file_size:,} bytes, more than any kernel"
            else:
                self.members[info.filename] = info
        self.files = _by_stem(self.members)

    def _records(self) -> Iterator[tuple[str, Record]]:
        for name in sorted(self.members):
            if name.endswith(".json") and (data := self._read(name)) is not None:
                try:
                    yield Path(name).stem, parse_record(data)
                except ValueError as error:
                    self.done.refused[name] = str(error)

    def _take(self, key: str, record: Record) -> None:
        here = self.cache.get(key)
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
        """The bytes of a member, or None, and it is refused, if they are damaged."""
        try:
            return self.archive.read(self.members[name])
        # What zipfile raises for damaged data, unknown compression and encryption.
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            self.done.refused[name] = f"is damaged: {error}"
            return None
