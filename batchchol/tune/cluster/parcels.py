"""Compiled kernels on their way between caches that share no file system: each payload once, named by its content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchchol.artifacts.cache import ArtifactCache
from batchchol.errors import BatchcholError

Entry = tuple[str, str, Mapping[str, Any]]


@dataclass(frozen=True)
class Parcel:
    """Entries of a cache.

    Attributes
    ----------
    entries : tuple
        Of each entry its key, the name of its payload and the metadata.
    payloads : mapping
        The bytes of each payload, by name.
    """

    entries: tuple[Entry, ...] = ()
    payloads: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def keys(self) -> frozenset[str]:
        """Of the entries."""
        return frozenset(key for key, _, _ in self.entries)

    def unpack(self, cache: ArtifactCache) -> None:
        """Put the entries into a cache.

        Raises
        ------
        BatchcholError
            If a payload is not what its name says: nothing of the parcel is taken.
        CacheError
            If the cache folder cannot be written.
        """
        stored = {name: cache.store(data, Path(name).suffix) for name, data in self.payloads.items()}
        for name, path in stored.items():
            if path.name != name:
                raise BatchcholError(f"parcel: {name} was damaged on its way: run the same command again")
        for key, name, metadata in self.entries:
            cache.link(key, stored[name], metadata)


NOTHING = Parcel()


def pack(cache: ArtifactCache, keys: Iterable[str]) -> Parcel:
    """What a cache has of these entries."""
    entries: list[Entry] = []
    payloads: dict[str, bytes] = {}
    for key in keys:
        if artifact := cache.get(key):
            entries.append((key, artifact.path.name, artifact.metadata))
            payloads.setdefault(artifact.path.name, artifact.data)
    return Parcel(tuple(entries), payloads)


def lacking(cache: ArtifactCache, keys: Iterable[str]) -> frozenset[str]:
    """The keys of which a cache has no whole entry."""
    return frozenset(key for key in keys if cache.get(key) is None)
