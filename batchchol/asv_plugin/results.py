"""asv's result files as plain rows: what was measured, for tables and plots outside of asv."""

from __future__ import annotations

import ast
import datetime
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from batchchol.asv_plugin.samples import SUFFIX, SampleRecord, load_samples, of_result
from batchchol.errors import DataFileError

RESULTS_VERSION = 2
"""The version of the result files, and of benchmarks.json, that asv 0.6 writes."""

NOT_RESULTS = ("machine.json", "benchmarks.json")


@dataclass(frozen=True)
class ResultRow:
    """One point of one benchmark at one commit.

    `median` and `samples` are in `unit`; asv keeps samples only when told to (`--record-samples`). `status`
    is "measured", "skipped" or "failed", and `median` is NaN unless the point was measured. `params` maps the
    parameters' names to their values. `date` is the commit's. `records` are what was recorded of each round of a
    `device_*` benchmark: its samples, and what ran under which conditions.
    """

    machine: str
    environment: str
    commit: str
    date: datetime.datetime
    benchmark: str
    params: Mapping[str, Any]
    status: str
    median: float
    samples: tuple[float, ...]
    unit: str
    records: tuple[SampleRecord, ...] = ()


def load_results(folder: Path | str, machine: str | None = None) -> list[ResultRow]:
    """Every point in asv's results `folder` (".asv/results"), ordered by commit date and benchmark.

    Parameters
    ----------
    folder : path
        What asv.conf.json calls "results_dir".
    machine : str, optional
        Only the results of this machine.

    Raises
    ------
    DataFileError
        If there are no results there, or a file is not what asv 0.6 writes.
    """
    folder = Path(folder)
    described = _load(folder / "benchmarks.json")
    paths = [path for path in sorted(folder.glob(f"{machine or '*'}/*.json")) if path.name not in NOT_RESULTS]
    if not paths:
        of_whom = f" of machine {machine!r}" if machine else ""
        raise DataFileError(folder, "whole folder", f"no results{of_whom}: run `asv run` first")
    recorded = _recorded(folder.glob(f"{machine or '*'}/*{SUFFIX}"))
    rows = [row for path in paths for row in _rows_of_file(path, described, recorded)]
    return sorted(rows, key=lambda row: (row.date, row.commit, row.benchmark))


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataFileError(path, "whole file", f"{error.strerror}: run `asv run` first") from error
    except ValueError as error:
        raise DataFileError(path, "whole file", f"not JSON ({error}): remove it and run `asv run` again") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != RESULTS_VERSION:
        raise DataFileError(path, "version", f"got {version!r}, expected {RESULTS_VERSION}: run `asv update`")
    return dict(content)


# Machine's folder, commit, environment, benchmark, parameters.
_Key = tuple[Path, str, str, str, str]


def _recorded(paths: Iterable[Path]) -> dict[_Key, list[SampleRecord]]:
    """The records in some files by what they are records of."""
    recorded: dict[_Key, list[SampleRecord]] = defaultdict(list)
    for path in sorted(paths):
        for record in load_samples(path):
            key = (path.parent, record.commit, record.environment, record.benchmark, _sorted(record.params))
            recorded[key].append(record)
    return recorded


def _sorted(params: Mapping[str, Any]) -> str:
    return repr(sorted(params.items()))


def _rows_of_file(
    path: Path, described: Mapping[str, Any], recorded: Mapping[_Key, Sequence[SampleRecord]]
) -> Iterator[ResultRow]:
    content = _load(path)
    try:
        date = _time(content["date"])
        for benchmark, stored in content["results"].items():
            columns = dict(zip(content["result_columns"], stored, strict=False))
            about = described.get(benchmark, {})
            started, duration = _time(columns.get("started_at") or 0), columns.get("duration") or 0.0
            for params, value, samples in _points(columns, about.get("param_names", [])):
                key = (path.parent, content["commit_hash"], content["env_name"], benchmark, _sorted(params))
                yield ResultRow(
                    machine=content["params"]["machine"],
                    environment=content["env_name"],
                    commit=content["commit_hash"],
                    date=date,
                    benchmark=benchmark,
                    params=params,
                    status=_status(value),
                    median=math.nan if value is None else float(value),
                    samples=tuple(samples or ()),
                    unit=about.get("unit", ""),
                    records=of_result(recorded.get(key, ()), started, duration),
                )
    except (KeyError, TypeError, ValueError) as error:
        raise DataFileError(path, "results", f"not what asv 0.6 writes ({error!r}): remove it") from error


def _time(milliseconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, tz=datetime.UTC)


def _points(
    columns: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[Mapping[str, Any], float | None, list[float] | None]]:
    """(parameters, value or None, samples or None) of every combination, the last parameter fastest."""
    axes = columns["params"]
    if len(names) != len(axes):
        # The benchmark has changed since: benchmarks.json describes the newest only.
        names = [f"param{index + 1}" for index in range(len(axes))]
    combinations = list(itertools.product(*axes))
    values = columns["result"] or [None] * len(combinations)
    samples = columns.get("samples") or [None] * len(combinations)
    for combination, value, taken in zip(combinations, values, samples, strict=True):
        yield MappingProxyType(dict(zip(names, map(_value, combination), strict=True))), value, taken


def _value(text: str) -> Any:
    """The parameter that asv stored as its `repr`; the text itself where that is not a literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _status(value: float | None) -> str:
    """asv's convention: null is a failure, NaN a point that was skipped."""
    if value is None:
        return "failed"
    return "skipped" if math.isnan(value) else "measured"
