"""What was learned on this machine: tables in the user's cache folder, one file for each device.

An entry is about exactly one case and order, and one batch; what it replaced, or did not, is its evidence. A file is
read once in a process. It is replaced in one step, under a lock, so that processes which tune at the same time keep
each other's entries.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from batchchol.artifacts.cache import ArtifactCache, default_folder
from batchchol.defaults.entries import (
    CASE,
    PLACE,
    PLANNED,
    Placed,
    Planned,
    Tuned,
    op_of,
    placed_of,
    planned_of,
    tuned_of,
)
from batchchol.errors import CacheError, DataFileError, SettingError
from batchchol.files import read_file, replace_file

FORMAT = 1
FOLDER = "tables"
VARIABLE = "BATCHCHOL_TABLES"
"""The environment variable: "shipped" leaves the user's tables unread, "user" is as if it were not set."""

_LONGEST_NAME = 120
_T = TypeVar("_T")


class TableWarning(UserWarning):
    """A table of the user's, or a part of it, cannot be used; names the file."""


@dataclass(frozen=True)
class UserTable:
    """The entries of a file."""

    path: Path | None = None
    entries: tuple[Tuned, ...] = ()
    placements: tuple[Placed, ...] = ()
    plans: tuple[Planned, ...] = ()


def enabled() -> bool:
    """Whether the user's tables are read.

    Raises
    ------
    SettingError
        If BATCHCHOL_TABLES has a value that means nothing.
    """
    chosen = os.environ.get(VARIABLE) or "user"
    if chosen not in ("user", "shipped"):
        raise SettingError(f"{VARIABLE}={chosen!r} is unknown: use 'user' or 'shipped'")
    return chosen == "user"


def path_of(device: str, architecture: str) -> Path:
    """The file of a device.

    Parameters
    ----------
    device : str
        The GPU's name, or the CPU's.
    architecture : str
        A GPU's, such as "sm_90", or the name of a CPU's target.

    Raises
    ------
    CacheError
        If there is no cache folder (no home folder).
    """
    name = re.sub(r"[^a-z0-9_]+", "-", f"{device} {architecture}".lower()).strip("-")
    return default_folder() / FOLDER / f"{name[-_LONGEST_NAME:]}.json"


def load(device: str, architecture: str, target: str) -> UserTable:
    """The table of a device; an empty one if there is none, or if it is not read.

    Whatever is wrong with it costs a `TableWarning`, and the entries that cannot be used.
    """
    if not enabled():
        return UserTable()
    try:
        path = path_of(device, architecture)
    except CacheError:
        return UserTable()
    try:
        content = _content(path, device, architecture)
    except (OSError, ValueError) as error:
        _warn(f"{path} is not used: {_reason(error)}; tune again, or remove it")
        return UserTable()
    entries = _parsed(path, content["entries"], lambda values: tuned_of(values, target))
    placements = _parsed(path, content["placements"], placed_of)
    plans = _parsed(path, content["plans"], planned_of)
    return UserTable(path, tuple(entries), tuple(placements), tuple(plans))


def merge(
    device: str,
    architecture: str,
    entries: Iterable[Tuned],
    placements: Iterable[Placed] = (),
    plans: Iterable[Planned] = (),
) -> Path:
    """Put entries into the table of a device, in place of those of the same case, order and batch; return its file.

    Raises
    ------
    CacheError
        If it cannot be written, or is of a newer version; what it had is still there.
    """
    path = path_of(device, architecture)
    try:
        ArtifactCache().prepare()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with _locked(path):
            content = _known(path, device, architecture)
            content["entries"] = _merged(content["entries"], entries, (*CASE, "n", "batch"))
            content["placements"] = _merged(content["placements"], placements, PLACE)
            content["plans"] = _merged(content["plans"], plans, PLANNED)
            replace_file(path, _render(content).encode())
    except (OSError, DataFileError) as error:
        raise CacheError(
            f"the table {path} cannot be written ({_reason(error)}): make room or give write permission "
            "there, or set BATCHCHOL_CACHE to another folder"
        ) from error
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file's lock; the system releases it when this process ends."""
    # Not at the top: tables are also read where there is no such module.
    import fcntl

    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _content(path: Path, device: str, architecture: str) -> dict[str, Any]:
    """What a file says, an empty table if there is none; its entries are not checked."""
    empty = {"format": FORMAT, "device": device, "architecture": architecture, "entries": [], "placements": []}
    empty["plans"] = []
    try:
        content = json.loads(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return empty
    except (ValueError, RecursionError) as error:
        raise ValueError(f"damaged: {_reason(error)}") from error
    if isinstance(content, dict):
        # What is newer than the format's first files.
        content.setdefault("plans", [])
    if not isinstance(content, dict) or not all(isinstance(content.get(key), type(empty[key])) for key in empty):
        raise ValueError("damaged: not a table")
    if content["format"] > FORMAT:
        raise _Newer(f"it is of format {content['format']}, and this version of batchchol knows {FORMAT}")
    if (content["device"], content["architecture"]) != (device, architecture):
        raise ValueError(f"it is of {content['device']!r}, {content['architecture']!r}")
    return content


class _Newer(ValueError):
    """A table that a newer version of the library wrote."""


def _known(path: Path, device: str, architecture: str) -> dict[str, Any]:
    """What a file says before it is replaced; an unreadable one is set aside."""
    try:
        return _content(path, device, architecture)
    except _Newer as error:
        raise CacheError(f"the table {path} cannot be changed: {error}; use that version, or remove it") from error
    except ValueError as error:
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        _warn(f"{path} cannot be used: {_reason(error)}; it is now {aside.name}")
        return _content(path, device, architecture)


def _merged(known: Sequence[Any], new: Iterable[Tuned | Placed | Planned], names: Sequence[str]) -> list[Any]:
    """Old and new entries, the new where both are about the same; unknown ones stay as they are."""
    merged: dict[str, Any] = {}
    for values in (*known, *(each.values() for each in new)):
        same = [op_of(values), *(values.get(name) for name in names)] if isinstance(values, dict) else [values]
        merged[json.dumps(same)] = values
    return list(merged.values())


def _render(content: Mapping[str, Any]) -> str:
    """JSON with an entry a line."""
    parts = [
        f" {json.dumps(key)}: [\n" + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]"
        if isinstance(value, list) and value
        else f" {json.dumps(key)}: {json.dumps(value)}"
        for key, value in content.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _parsed(path: Path, listed: Sequence[Any], parse: Callable[[Any], _T]) -> Iterator[_T]:
    """What can be used of a list; one warning names the rest."""
    unusable = []
    for values in listed:
        try:
            parsed = parse(values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            of = [values.get(name) for name in ("n", "batch")] if isinstance(values, dict) else values
            unusable.append(f"(n, batch)={of}: {_reason(error)}")
        else:
            yield parsed
    if unusable:
        more = f" (and {len(unusable) - 1} more)" if len(unusable) > 1 else ""
        _warn(
            f"{path}: an entry is not used{more}, that of {unusable[0]}; another version wrote it, or it is damaged: "
            "tune again"
        )


def _reason(error: Exception) -> str:
    said = error.reason if isinstance(error, DataFileError) else getattr(error, "strerror", None)
    return said or " ".join(str(error).split()) or repr(error)


def _warn(message: str) -> None:
    warnings.warn(message, TableWarning, stacklevel=2)
