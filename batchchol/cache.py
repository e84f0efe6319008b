"""The artifact cache: compiled kernels on disk, shared by any number of processes.

An entry is three files in one folder:

- ``<key>.c`` (or another suffix): the generated source, for people to read; never read back;
- ``<sha256>.<suffix>``: the payload, named by its own content;
- ``<key>.json``: the record, which names the payload, its hash and the metadata.

The record is written last, and each file in one step, so that a record never points at a payload that is not
whole. Records may share a payload: a module of several kernels is stored once. What is damaged later (a truncated
payload, a flipped byte, a deleted file) is found by the payload's hash at look-up and is a miss: the entry is
built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchchol.errors import CacheError

_KEY = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]+")
TEMPORARY_PREFIX = ".partial-"
_STALE_SECONDS = 3600.0


@dataclass(frozen=True)
class Artifact:
    """A payload in the cache.

    Attributes
    ----------
    path : Path
        The payload's file; its bytes were verified when it was looked up.
    metadata : Mapping[str, Any]
        What the builder recorded about it (JSON values).
    """

    path: Path
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Built:
    """What a build hands to the cache.

    Attributes
    ----------
    payload : bytes or Path
        The compiled object, or the file that holds it.
    suffix : str
        The payload's file suffix, dot included, such as ``.so`` or ``.cubin``.
    metadata : Mapping[str, Any]
        JSON values to keep with the payload, such as compile seconds.
    source : str
        The generated source, kept beside the payload for reading.
    source_suffix : str
        The suffix of the kept source, dot included.
    """

    payload: bytes | Path
    suffix: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    source_suffix: str = ".c"


@dataclass(frozen=True)
class Record:
    """What an entry's file says: its payload's name and the metadata."""

    payload: str
    metadata: Mapping[str, Any]

    def names(self, data: bytes) -> bool:
        """Whether these bytes are the payload that is meant."""
        return _digest(data) == Path(self.payload).stem


def parse_record(data: bytes) -> Record:
    """Read an entry's file.

    Raises
    ------
    ValueError
        If it is damaged in any way.
    """
    try:
        record = json.loads(data)
        digest, name, metadata = record["sha256"], record["payload"], record["metadata"]
        # The name is compared before anything is opened: a damaged record must not lead out of the folder.
        if not isinstance(metadata, dict) or name != _payload_name(digest, Path(name).suffix):
            raise ValueError(f"got {name!r} for a payload of {digest!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not the record of a cache entry: {error!r}") from error
    return Record(name, metadata)


def cache_key(parts: Mapping[str, str]) -> str:
    """Hash named parts (source, generator version, options, compiler, architecture) to a 64-digit key.

    The parts are encoded as sorted JSON, so that different parts never run together to the same bytes.
    """
    encoded = json.dumps(dict(parts), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(encoded.encode("ascii")).hexdigest()


def default_folder() -> Path:
    """Return the cache folder: BATCHCHOL_CACHE, else $XDG_CACHE_HOME/batchchol, else ~/.cache/batchchol.

    Raises
    ------
    CacheError
        If none of them names a folder (no home folder).
    """
    chosen = os.environ.get("BATCHCHOL_CACHE")
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    if os.path.isabs(base):
        return Path(base, "batchchol")
    try:
        return Path.home() / ".cache" / "batchchol"
    except RuntimeError as error:
        raise CacheError("no home folder to keep kernels in: set BATCHCHOL_CACHE to a folder") from error


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step: readers see the old bytes or all of the new ones.

    Raises
    ------
    OSError
        As the system reports it; `path` is as it was and nothing is left beside it.
    """
    # Not flushed to the disk on purpose: a file that a power cut emptied fails its hash and is built again.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY_PREFIX)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            # Temporary files are the owner's alone; results and plots are for others to read as well.
            os.fchmod(stream.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


class ArtifactCache:
    """Compiled artifacts by key in one folder, safe for many processes at once.

    Parameters
    ----------
    folder : Path or None
        Where the entries are; created at the first write. None means :func:`default_folder`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(os.path.abspath(folder))

    def get(self, key: str) -> Artifact | None:
        """Return the entry of `key`, its payload verified, or None if it is missing or damaged in any way."""
        _check_key(key)
        try:
            record = parse_record((self.folder / f"{key}.json").read_bytes())
            if not record.names((self.folder / record.payload).read_bytes()):
                return None
        except (OSError, ValueError):
            return None
        return Artifact(self.folder / record.payload, record.metadata)

    def put(
        self,
        key: str,
        payload: bytes | Path,
        suffix: str,
        metadata: Mapping[str, Any],
        source: str,
        source_suffix: str = ".c",
    ) -> Artifact:
        """Store an entry, replacing the one of the same key, and return it.

        See :class:`Built` for the parameters.

        Raises
        ------
        CacheError
            If the folder cannot be created or written; names it and says what to set.
        ValueError
            If the key or a suffix is malformed, or the metadata are not JSON.
        """
        _check_key(key)
        _check_suffix(source_suffix)
        _encode(metadata)
        path = self.store(payload, suffix)
        return self.link(key, path, metadata, source, source_suffix)

    def store(self, payload: bytes | Path, suffix: str) -> Path:
        """Store a payload, a compiled object or the file that holds it, without a record; return its file.

        Raises
        ------
        CacheError
            If the folder cannot be created or written.
        """
        _check_suffix(suffix)
        data = payload if isinstance(payload, bytes) else payload.read_bytes()
        path = self.folder / _payload_name(_digest(data), suffix)
        self.prepare()
        self._write(path, data)
        return path

    def link(
        self, key: str, payload: Path, metadata: Mapping[str, Any], source: str = "", source_suffix: str = ".c"
    ) -> Artifact:
        """Record an entry whose payload :meth:`store` has stored; return it.

        A source that is not empty is kept beside it, for reading.

        Raises
        ------
        CacheError
            If the folder cannot be written.
        """
        _check_key(key)
        _check_suffix(source_suffix)
        record = _encode({"sha256": payload.stem, "payload": payload.name, "metadata": dict(metadata)})
        if source:
            self._write(self.folder / f"{key}{source_suffix}", source.encode())
        self._write(self.folder / f"{key}.json", record)
        return Artifact(self.folder / payload.name, dict(metadata))

    def stored_keys(self) -> list[str]:
        """The keys of all records, damaged ones included, in alphabetical order."""
        return sorted(path.stem for path in self.folder.glob("*.json") if _KEY.fullmatch(path.stem))

    def get_or_build(self, key: str, build: Callable[[Path], Built]) -> Artifact:
        """Return the entry of `key`, building and storing it if it is missing or damaged.

        Parameters
        ----------
        key : str
            From :func:`cache_key`.
        build : callable
            Called with an empty scratch folder, removed afterwards, where it may write. What it raises passes
            through and nothing is stored. Processes that miss at the same moment each build, and the last
            one's entry stays.

        Raises
        ------
        CacheError
            If the folder cannot be created or written (where that can be known, before anything is built).
        """
        found = self.get(key)
        if found is not None:
            return found
        self.prepare()
        with tempfile.TemporaryDirectory(prefix="batchchol-") as scratch:
            built = build(Path(scratch))
            return self.put(key, built.payload, built.suffix, built.metadata, built.source, built.source_suffix)

    def _write(self, path: Path, data: bytes) -> None:
        try:
            replace_file(path, data)
        except OSError as error:
            raise _unusable(self.folder, error) from error

    def prepare(self) -> None:
        """Make the folder, or raise a CacheError: where that can be known before anything is built."""
        try:
            # For the owner alone: whoever can write here can have code loaded.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            _remove_stale(self.folder)
        except OSError as error:
            raise _unusable(self.folder, error) from error


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"key: got {key!r}, expected 64 hexadecimal digits: make it with cache_key")


def _check_suffix(suffix: str) -> None:
    if not _SUFFIX.fullmatch(suffix) or suffix == ".json":
        raise ValueError(f"suffix: got {suffix!r}, expected a dot and letters other than '.json', such as '.so'")


def _payload_name(digest: str, suffix: str) -> str:
    _check_key(digest)
    _check_suffix(suffix)
    return f"{digest}{suffix}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encode(record: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(record), sort_keys=True, indent=1).encode()
    except TypeError as error:
        raise ValueError(f"metadata: expected values that JSON can hold: {error}") from error


def _remove_stale(folder: Path) -> None:
    """Remove temporary files of writers that were killed; younger ones may still be in use."""
    oldest = time.time() - _STALE_SECONDS
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def _unusable(folder: Path, error: OSError) -> CacheError:
    return CacheError(
        f"the cache folder {folder} cannot be written ({error.strerror or error}): "
        "make room or give write permission there, or set BATCHCHOL_CACHE to another folder"
    )
