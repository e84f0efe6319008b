"""The measurements of a gate so far, line by line: an interrupted one continues from there."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from batchchol.asv_plugin.gate.experiment import Found
from batchchol.asv_plugin.gate.settings import Settings
from batchchol.errors import DataFileError


class Journal:
    """The file of one gate: of its commits, and of how they are compared."""

    def __init__(self, file: IO[str], known: dict[tuple[str, bool], deque[Found]]) -> None:
        self._file, self._known = file, known

    @classmethod
    @contextmanager
    def open(cls, settings: Settings) -> Iterator[Journal]:
        """The journal of a gate; what an interrupted one has written is read.

        Raises
        ------
        DataFileError
            If it cannot be written.
        """
        path = _path(settings)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            known, torn = _read(path)
            with path.open("a", encoding="utf-8") as file:
                if torn:
                    file.write("\n")
                yield cls(file, known)
        except OSError as error:
            raise DataFileError(path, "writing", error.strerror or str(error)) from error

    def next(self, key: str, *, fresh: bool) -> Found | None:
        """What it has of a case that was not asked for yet; None if that is all."""
        waiting = self._known.get((key, fresh))
        return waiting.popleft() if waiting else None

    def note(self, found: Found, *, fresh: bool) -> None:
        """Add what one process found."""
        self._file.write(json.dumps({"fresh": fresh, **asdict(found)}) + "\n")
        self._file.flush()


def forget(settings: Settings) -> None:
    """Remove a gate's journal: everything is in the answer, and that is kept."""
    _path(settings).unlink(missing_ok=True)


def _path(settings: Settings) -> Path:
    how = (settings.profile, settings.backend, settings.bench, str(settings.prove))
    name = f"{settings.base[:16]}-{settings.head[:16]}-{sha256(repr(how).encode()).hexdigest()[:8]}.jsonl"
    return settings.store / "journals" / name


def _read(path: Path) -> tuple[dict[tuple[str, bool], deque[Found]], bool]:
    """What it has, and whether its last line was being written when the gate was killed."""
    known: dict[tuple[str, bool], deque[Found]] = defaultdict(deque)
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            content: dict[str, Any] = json.loads(line)
            fresh = content.pop("fresh")
            known[content["key"], fresh].append(Found(**content))
    return known, bool(text) and not text.endswith("\n")
