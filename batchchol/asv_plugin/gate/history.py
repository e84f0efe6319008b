"""The noise of a machine: what equal code, measured against itself, seemed to differ by.

A file of JSON lines for each machine, one line a case and run. Lines are only ever added.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from batchchol.asv_plugin.gate.decide import FLOORS, threshold
from batchchol.errors import DataFileError
from batchchol.files import read_file

RECENT = 50
"""Runs of each case that count, the last ones: machines change."""

_FEWEST = 3
_FAR = 3.0


@dataclass(frozen=True)
class Control:
    """Equal code against itself: one case of one run.

    Attributes
    ----------
    date : str
        ISO 8601.
    commit : str
    key, kind : str
        The case; see :class:`~batchchol.asv_plugin.gate.outcome.Outcome`.
    location, spread : float
        Of the logarithmic ratios of its processes: robust location, and standard deviation of one process.
    processes : int
    alarm : bool
        Whether it was called slower or faster.
    """

    date: str
    commit: str
    key: str
    kind: str
    location: float
    spread: float
    processes: int
    alarm: bool


@dataclass(frozen=True)
class History:
    """The controls of a machine, the oldest first, and a message for each line that could not be read."""

    controls: tuple[Control, ...] = ()
    damaged: tuple[str, ...] = ()

    @cached_property
    def _noise(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for each in self.controls:
            found[each.kind, each.key].append(abs(each.location))
        return {
            case: float(1.4826 * np.median(sizes[-RECENT:])) for case, sizes in found.items() if len(sizes) >= _FEWEST
        }

    def noise_of(self, key: str) -> float | None:
        """The standard deviation of a case's estimates about 0, which is the truth; None of fewer than three."""
        return next((noise for (_, each), noise in self._noise.items() if each == key), None)

    def flaky(self) -> list[str]:
        """Cases with three times the median noise of their kind and more than its floor allows; the worst first."""
        kinds = {kind for kind, _ in self._noise}
        usual = {
            kind: np.median([noise for (each, _), noise in self._noise.items() if each == kind]) for kind in kinds
        }
        far = {
            key: noise
            for (kind, key), noise in self._noise.items()
            if noise > _FAR * usual[kind] and threshold(kind, noise) > threshold(kind, None)
        }
        return sorted(far, key=far.__getitem__, reverse=True)

    def alarms(self) -> tuple[int, int]:
        """How many controls were called slower or faster, and how many there were."""
        return sum(each.alarm for each in self.controls), len(self.controls)


def wilson(found: int, among: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a rate (1927); 0 to 1 if there was no trial."""
    from scipy import stats

    if not among:
        return 0.0, 1.0
    low, high = stats.binomtest(found, among).proportion_ci(confidence, method="wilson")
    return float(low), float(high)


def read_history(path: Path) -> History:
    """What is known of a machine; nothing if there is no such file.

    Raises
    ------
    DataFileError
        If the file is there and cannot be read.
    """
    try:
        lines = read_file(path).splitlines()
    except FileNotFoundError:
        return History()
    except OSError as error:
        raise DataFileError(path, "reading", error.strerror or str(error)) from error
    controls, damaged = [], []
    for number, line in enumerate(lines, start=1):
        try:
            controls.append(_control(line))
        except (ValueError, RecursionError) as error:
            damaged.append(f"{path}: line {number} is left out: {error}")
    return History(tuple(controls), tuple(damaged))


def _control(line: bytes) -> Control:
    content = json.loads(line)
    if not isinstance(content, dict) or content.get("kind") not in list(FLOORS):
        raise ValueError("it is not of a kind that is known")
    try:
        control = Control(**{each.name: content[each.name] for each in fields(Control)})
        finite = np.isfinite([control.location, control.spread]).all()
    except (KeyError, TypeError) as error:
        raise ValueError(f"what it says of a case is incomplete or of another type ({error})") from error
    if not finite or not isinstance(control.key, str):
        raise ValueError("its numbers are not finite, or its key is no text")
    return control


def add(path: Path, controls: Sequence[Control]) -> None:
    """Add a run's lines, all or none; other processes may add at the same time.

    Raises
    ------
    DataFileError
        If they cannot be written; the file is then as it was.
    """
    import fcntl

    lines = b"".join(json.dumps(asdict(each)).encode() + b"\n" for each in controls)
    try:
        with open(path, "a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            _append(file.fileno(), end, lines)
    except OSError as error:
        raise DataFileError(path, "writing", error.strerror or str(error)) from error


def _append(descriptor: int, end: int, lines: bytes) -> None:
    """Write at the end; the line of a writer that was killed is ended first, and what fails is taken back."""
    torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
    data = b"\n" * torn + lines
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, end)
        raise
