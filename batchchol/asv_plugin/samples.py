"""What asv's result files have no room for: every sample of a device, with the state it was in and what was run.

A file of JSON lines lies beside the results of each commit (`<machine>/<commit>-<environment>.samples.jsonl`); asv
looks at files that end in .json alone, and leaves it in peace. A measured process adds one line for each point and
round. asv replaces the results of a point that is measured again, while lines are only ever added: see `of_result`.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from batchchol.errors import DataFileError

FILE_VARIABLE = "BATCHCHOL_ASV_SAMPLES"
"""The environment variable that names the file of the running process; nothing is recorded without it."""
RUN_VARIABLE = "BATCHCHOL_ASV_RUN"
"""The environment variable that names the run of asv that a process belongs to."""
SUFFIX = ".samples.jsonl"


@dataclass(frozen=True)
class SampleRecord:
    """The samples of one point in one round.

    Attributes
    ----------
    run : str
        Which run of asv took them: the rounds of one run make one result.
    time : datetime
        When they had been taken, in UTC.
    commit, environment, benchmark : str
        As asv names them; empty if asv did not say.
    params : mapping
        The parameters' names and values.
    samples : tuple of float
        What the benchmark returned: seconds per matrix, unless it says otherwise.
    about : mapping
        What it said about them: for a kernel its `spec`, the `source_sha256` of its text, compiler `flags` and
        `compiler`, the `protocol`, the `floor_seconds` of that protocol, the largest residual `ratio`, the `device`,
        and the `conditions` (clocks, temperature, throttling) "before" and "after", both {} of a CPU.
    """

    run: str
    time: datetime.datetime
    commit: str
    environment: str
    benchmark: str
    params: Mapping[str, Any]
    samples: tuple[float, ...]
    about: Mapping[str, Any]


def file_name(commit: str, environment: str) -> str:
    """The name of the file of a commit, in the folder of the machine's results."""
    return f"{commit[:8]}-{environment}{SUFFIX}"


def record(benchmark: str, params: Mapping[str, Any], samples: Sequence[float], about: Mapping[str, Any]) -> None:
    """Add a line about samples that were just taken to the file of this process, if it has one."""
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return
    line = {
        "run": os.environ.get(RUN_VARIABLE, ""),
        "time": datetime.datetime.now(datetime.UTC).isoformat(),
        "commit": os.environ.get("ASV_COMMIT", ""),
        "environment": os.environ.get("ASV_ENV_NAME", ""),
        "benchmark": benchmark,
        "params": dict(params),
        "samples": list(samples),
        "about": dict(about),
    }
    # One write of a whole line: processes that measure side by side do not tear each other's.
    with open(path, "ab", buffering=0) as file:
        file.write((json.dumps(line) + "\n").encode())


def load_samples(path: Path | str) -> list[SampleRecord]:
    """The records in a file, in the order in which they were taken.

    Raises
    ------
    DataFileError
        If the file cannot be read, or a line of it is damaged.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataFileError(path, "whole file", str(error)) from error
    return [_parsed(path, number, line) for number, line in enumerate(lines, start=1)]


def of_result(
    records: Iterable[SampleRecord], started: datetime.datetime, seconds: float
) -> tuple[SampleRecord, ...]:
    """Of the records of one point, those behind its result: all rounds of one run of asv.

    Parameters
    ----------
    records : iterable of SampleRecord
        All that were ever taken of the point at one commit.
    started, seconds
        When asv began the last round of the result's benchmark, and how long it took at most.
    """
    records = list(records)
    ended = started + datetime.timedelta(seconds=seconds + 1)
    runs = [each.run for each in records if started <= each.time <= ended]
    # A run right after it, which does not replace it, comes later.
    return tuple(each for each in records if runs and each.run == runs[0])


def _parsed(path: Path, number: int, line: str) -> SampleRecord:
    try:
        values = json.loads(line)
        return SampleRecord(
            run=values["run"],
            time=datetime.datetime.fromisoformat(values["time"]),
            commit=values["commit"],
            environment=values["environment"],
            benchmark=values["benchmark"],
            params=MappingProxyType(values["params"]),
            samples=tuple(values["samples"]),
            about=MappingProxyType(values["about"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataFileError(
            path, f"line {number}", f"not a record of samples ({error!r}): remove the line"
        ) from error
