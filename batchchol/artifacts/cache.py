"""The artifact cache: compiled kernels on disk, shared by any number of processes.

An entry is three files in one folder:

- ``<key>.c`` (or another suffix): the generated source, for people to read; never read back;
- ``<sha256>.<suffix>``: the payload, named by its own content;
- ``<key>.json``: the record, which names the payload, its hash and the metadata.

The record is written last, and each file in one step, so that a record never points at a payload that is not
whole. Records may share a payload: a module of several kernels is stored once. What is damaged later (a truncated
payload, a flipped bit, a deleted file, a record of another key) is found by the hashes at look-up and is a miss: the
entry is built again.

Code is loaded from here, so the folder must be one that only root and the current user can change; files of others in
it are misses. Each file is read once, and what was verified is what is used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchchol.artifacts.trusted import Untrusted, read_file, resolve_folder
from batchchol.errors import CacheError
from batchchol.files import TEMPORARY_PREFIX, replace_entry

_KEY = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]+")
_STALE_SECONDS = 3600.0
RECORD_BYTES = 1 << 16
"""The largest record: that of a kernel has a thousandth."""
PAYLOAD_BYTES = 1 << 28
"""The largest payload: more than any kernel's code."""


@dataclass(frozen=True)
class Artifact:
    """A payload in the cache.

    Attributes
    ----------
    path : Path
        The payload's file, for messages: what is there may be replaced at any time.
    data : bytes
        The payload, verified.
    metadata : Mapping[str, Any]
        What the builder recorded about it (JSON values).
    """

    path: Path
    data: bytes = field(repr=False)
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """The content of an entry's file: its payload's name and the metadata."""

    payload: str
    metadata: Mapping[str, Any]

    def names(self, data: bytes) -> bool:
        """Whether these bytes are the payload of the record."""
        return _digest(data) == Path(self.payload).stem


def parse_record(key: str, data: bytes) -> Record:
    """Read the file of an entry.

    Raises
    ------
    ValueError
        If it is damaged in any way, or the record of another key.
    """
    try:
        record = json.loads(data)
        digest, name, metadata = record["sha256"], record["payload"], record["metadata"]
        # The name is compared before anything is opened: a damaged record must not lead out of the folder.
        if not isinstance(metadata, dict) or name != _payload_name(digest, Path(name).suffix):
            raise ValueError(f"got {name!r} for a payload of {digest!r}")
        # Records of earlier versions have none.
        if "check" in record and record["check"] != _check(key, name, metadata):
            raise ValueError("it does not have its own hash, or is of another key")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
    # The XDG base directory specification: ignore relative paths.
    if os.path.isabs(base):
        return Path(base, "batchchol")
    try:
        return Path.home() / ".cache" / "batchchol"
    except RuntimeError as error:
        raise CacheError("no home folder to keep kernels in: set BATCHCHOL_CACHE to a folder") from error


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
        """Return the entry of `key`, verified, or None if it is missing, damaged in any way, or of another user.

        Raises
        ------
        CacheError
            If others can change what is in the folder; says what to do.
        """
        _check_key(key)
        folder = self._trusted()
        try:
            record = parse_record(key, read_file(folder / f"{key}.json", RECORD_BYTES))
            data = read_file(folder / record.payload, PAYLOAD_BYTES)
        except (OSError, ValueError):
            return None
        return Artifact(self.folder / record.payload, data, record.metadata) if record.names(data) else None

    def read(self, name: str) -> bytes | None:
        """The bytes of one of the cache's files, unchecked; None if it cannot be read."""
        try:
            return read_file(self._trusted() / name, PAYLOAD_BYTES)
        except (OSError, Untrusted):
            return None

    def put(
        self,
        key: str,
        payload: bytes,
        suffix: str,
        metadata: Mapping[str, Any],
        source: str,
        source_suffix: str = ".c",
    ) -> Artifact:
        """Store an entry, replacing the one of the same key, and return it.

        Parameters
        ----------
        key : str
            From :func:`cache_key`.
        payload : bytes
            The compiled object.
        suffix : str
            The payload's file suffix, dot included, such as ``.so`` or ``.cubin``.
        metadata : Mapping[str, Any]
            JSON values to keep with the payload, such as compile seconds.
        source, source_suffix : str
            The generated source, kept beside the payload for reading, and its suffix.

        Raises
        ------
        CacheError
            If the folder cannot be created or written; names it and says what to set.
        ValueError
            If the key or a suffix is malformed, or the metadata are not JSON.
        """
        _check_key(key)
        _check_suffix(source_suffix)
        _plain(metadata)
        path = self.store(payload, suffix)
        self.link(key, path, metadata, source, source_suffix)
        return Artifact(path, payload, _plain(metadata))

    def store(self, payload: bytes, suffix: str) -> Path:
        """Store a payload, a compiled object, without a record; return its file.

        Raises
        ------
        CacheError
            If the folder cannot be created or written, or others can change what is in it.
        """
        _check_suffix(suffix)
        path = self.folder / _payload_name(_digest(payload), suffix)
        self.prepare()
        self._write(path.name, payload)
        return path

    def link(
        self, key: str, payload: Path, metadata: Mapping[str, Any], source: str = "", source_suffix: str = ".c"
    ) -> None:
        """Record an entry whose payload :meth:`store` has stored.

        A source that is not empty is kept beside it, for reading.

        Raises
        ------
        CacheError
            If the folder cannot be written.
        """
        _check_key(key)
        _check_suffix(source_suffix)
        plain = _plain(metadata)
        record = {"sha256": payload.stem, "payload": payload.name, "metadata": plain}
        record["check"] = _check(key, payload.name, plain)
        if source:
            self._write(f"{key}{source_suffix}", source.encode())
        self._write(f"{key}.json", json.dumps(record, sort_keys=True, indent=1).encode())

    def stored_keys(self) -> list[str]:
        """The keys of all records, damaged ones included, in alphabetical order."""
        return sorted(path.stem for path in self.folder.glob("*.json") if _KEY.fullmatch(path.stem))

    def keep_failed(self, source: str, suffix: str) -> Path:
        """Keep a source that did not compile, only once if it fails again; return its file.

        Raises
        ------
        CacheError
            If the folder cannot be written.
        """
        self.prepare()
        name = f"{_digest(source.encode())[:16]}{suffix}"
        try:
            (self._trusted() / "failed").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _unusable(self.folder / "failed", error) from error
        self._write(f"failed/{name}", source.encode())
        return self.folder / "failed" / name

    def prepare(self) -> None:
        """Make the folder, or raise a CacheError: where that can be known before anything is built."""
        folder = self._trusted()
        try:
            # For the owner alone, whatever the umask.
            for part in (*reversed(folder.parents), folder):
                if not part.exists():
                    part.mkdir(mode=0o700, exist_ok=True)
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            _remove_stale(folder)
        except OSError as error:
            raise _unusable(self.folder, error) from error

    def _write(self, name: str, data: bytes) -> None:
        try:
            # A file that a power cut emptied fails its hash and is built again.
            replace_entry(self._trusted() / name, data, 0o644)
        except OSError as error:
            raise _unusable(self.folder / name, error) from error

    def _trusted(self) -> Path:
        """The folder, links resolved, which no other user can change."""
        try:
            return resolve_folder(self.folder)
        except Untrusted as error:
            raise CacheError(
                f"code is not loaded from the cache folder {self.folder}: {error}. "
                "Or set BATCHCHOL_CACHE to a folder of your own"
            ) from error
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


def _check(key: str, payload: str, metadata: Mapping[str, Any]) -> str:
    """A hash that tells a record from a damaged one, and from that of another key."""
    return _digest(json.dumps([key, payload, metadata], sort_keys=True).encode())


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as they are read back."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(metadata)))
    except TypeError as error:
        raise ValueError(f"metadata: expected values that JSON can hold: {error}") from error
    return plain


def _remove_stale(folder: Path) -> None:
    """Remove temporary files of writers that were killed; younger ones may still be in use."""
    oldest = time.time() - _STALE_SECONDS
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def _unusable(path: Path, error: OSError) -> CacheError:
    return CacheError(
        f"the cache cannot be used: {path}: {error.strerror or error}: make room or give write permission there, "
        "or set BATCHCHOL_CACHE to another folder"
    )
