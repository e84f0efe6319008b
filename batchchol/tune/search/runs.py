"""The searches of a replay as a file: what was the best so far, at each measurement that improved it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from batchchol.errors import DataFileError
from batchchol.tune.search.cases import Case
from batchchol.tune.search.replay import Run, Surface

_COLUMNS = ("case", "strategy", "repeat", "measured", "improvements")


def written(surfaces: Sequence[Surface], runs: Sequence[Run]) -> str:
    """A line a search: its case, how many points it measured, and `count:regret` of each improvement."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for run in runs:
        said = " ".join(f"{count}:{regret:.6g}" for count, regret in _improvements(run.regret))
        writer.writerow([_named(surfaces[run.number].case), run.strategy, run.repeat, len(run.regret), said])
    return text.getvalue()


def read(path: Path, surfaces: Sequence[Surface]) -> list[Run]:
    """The searches of a file that `written` made, in these cases.

    Raises
    ------
    DataFileError
        If it cannot be read, or its cases are others.
    """
    numbers = {_named(surface.case): number for number, surface in enumerate(surfaces)}
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return [_run(line, numbers) for line in csv.DictReader(stream)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"no searches of these data ({error!r}): leave --runs out to make them"
        raise DataFileError(path, "reading", reason) from error


def _run(line: Mapping[str, str], numbers: Mapping[str, int]) -> Run:
    best, regret = math.inf, list[float]()
    for improvement in line["improvements"].split():
        count, value = improvement.split(":")
        regret += [best] * (int(count) - 1 - len(regret))
        best = float(value)
    regret += [best] * (int(line["measured"]) - len(regret))
    return Run(numbers[line["case"]], line["strategy"], int(line["repeat"]), tuple(regret))


def _improvements(regret: Sequence[float]) -> Iterator[tuple[int, float]]:
    """The measurements, counted from 1, that were better than all before."""
    best = math.inf
    for count, value in enumerate(regret, start=1):
        if value < best:
            best = value
            yield count, value


def _named(case: Case) -> str:
    return " ".join(map(str, astuple(case)))
