"""The progress of a long build, and its display: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

LINE_SECONDS = 5.0
_BAR = 24


@dataclass(frozen=True)
class Progress:
    """How far a build of many kernels is: kernels done of `total`, how many of them were `reused` and have `failed`.

    `seconds` since it began; `seconds_left` by the time that kernels took for their length, None until one was
    compiled. `things` are what is done.
    """

    done: int
    total: int
    reused: int
    failed: int
    seconds: float
    seconds_left: float | None
    things: str = "kernels"

    @classmethod
    def since(cls, begin: float, done: int, total: int, failed: int = 0, things: str = "kernels") -> Progress:
        """How far it is since a moment of the monotonic clock, at the pace so far."""
        seconds = time.monotonic() - begin
        return cls(done, total, 0, failed, seconds, seconds / done * (total - done) if done else None, things)


Show = Callable[[Progress], None]
"""Called about every second and whenever something is done."""


class ProgressDisplay:
    """Shows a :class:`Progress` whenever it is called with one; the end of its context ends the bar's line."""

    def __init__(self, stream: TextIO, label: str) -> None:
        self._stream = stream
        self._label = label
        self._terminal = stream.isatty()
        self._shown = time.monotonic()

    def __enter__(self) -> ProgressDisplay:
        return self

    def __call__(self, progress: Progress) -> None:
        if self._terminal:
            columns = shutil.get_terminal_size().columns - 1
            line = f"{self._label} {_bar(progress)} {describe(progress)}"
            self._stream.write("\r" + line[:columns].ljust(columns))
            self._stream.flush()
        elif time.monotonic() - self._shown >= LINE_SECONDS:
            self._shown = time.monotonic()
            print(f"{self._label} {describe(progress)}", file=self._stream, flush=True)

    def __exit__(self, *_: object) -> None:
        # What is written next begins a line of its own.
        if self._terminal:
            print(file=self._stream, flush=True)


def describe(progress: Progress) -> str:
    """The progress in words, such as ``"12 of 80 kernels, 1 failed, 0:31, about 2:40 left"``."""
    parts = [f"{progress.done} of {progress.total} {progress.things}"]
    parts += [f"{progress.failed} failed"] * (progress.failed > 0) + [minutes(progress.seconds)]
    if progress.seconds_left is not None and progress.done < progress.total:
        parts.append(f"about {minutes(progress.seconds_left)} left")
    return ", ".join(parts)


def minutes(seconds: float) -> str:
    """A duration such as ``"2:05"``."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


def _bar(progress: Progress) -> str:
    filled = _BAR * progress.done // max(progress.total, 1)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}]"
