"""What `asv run` prints, as one entry a benchmark, without the points that were left out.

asv prints every point of a grid and "ok" for a benchmark of which none was measured: thousands of lines for some
dozens of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SKIPPED = "skipped"

# A line of progress, without the heads of tables and of messages, which begin alike.
_PROGRESS = re.compile(r"\[ *[\d.]+%\] ·+ (?!=|For parameters)")
_RULE = re.compile(r"(\[ *[\d.]+%\] ·+)? *[=-]+( [=-]+)* *$")
_LEFT_OUT = re.compile(r" +.* n/a\b")
_MEASURED_TOO = re.compile(r"\d(ns|μs|us|ms|s)\b|\d±")
_PARAMETERS = re.compile(r"^(\[ *[\d.]+%\] ·+| +) For parameters: ")
_WHY_SKIPPED = "asv: skipped: "
_INDENT = " " * 13


@dataclass(frozen=True)
class Entry:
    """A line of progress and what followed it, without the points that were left out."""

    progress: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join((self.progress, *self.details)) + "\n"


def entries(lines: Iterable[str]) -> Iterator[Entry]:
    """The entries of a log, each as soon as the next one begins; lines before the first are entries of their own."""
    progress = ""
    rest: list[str] = []
    for line in map(str.rstrip, lines):
        if not _PROGRESS.match(line):
            rest.append(line)
            continue
        yield from _entry(progress, rest)
        progress, rest = line, []
    yield from _entry(progress, rest)


def _entry(progress: str, rest: Sequence[str]) -> Iterator[Entry]:
    table = list(_condensed(rest))
    skipped = dict.fromkeys(line.partition(_WHY_SKIPPED)[2] for line in rest if _WHY_SKIPPED in line)
    reasons = [f"{_INDENT}{SKIPPED}: {why}" for why in skipped]
    if not progress:
        yield from map(Entry, table)
    elif progress.endswith(" ok") and _is_empty(table):
        yield Entry(f"{progress.removesuffix('ok')}{SKIPPED}", tuple(reasons))
    else:
        yield Entry(progress, (*table, *reasons))


def _condensed(lines: Iterable[str]) -> Iterator[str]:
    """Without rows of tables that hold no number, and without what is said of skipped points."""
    held = ""
    for line in lines:
        if _WHY_SKIPPED in line:
            held = ""
        elif _PARAMETERS.match(line):
            held = line
        elif line and (not _LEFT_OUT.match(line) or _MEASURED_TOO.search(line)):
            if held:
                yield held
            held = ""
            yield line


def _is_empty(lines: Sequence[str]) -> bool:
    """Whether the table has lost all its rows: the rule below its head is followed by the last one."""
    rules = [place for place, line in enumerate(lines) if _RULE.match(line)]
    return len(rules) > 1 and rules[-1] == rules[-2] + 1
