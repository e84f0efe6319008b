"""asv's result files as plain rows: what was measured, for tables and plots outside of asv."""

from __future__ import annotations

import ast
import datetime
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from batchchol.asv_plugin.samples import SUFFIX, SampleRecord, load_samples, of_result
from batchchol.errors import DataFileError

NOT_RESULTS = ("machine.json", "benchmarks.json")

Content = TypeVar("Content")
_NEVER = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)


@dataclass(frozen=True)
class ResultRow:
    """One point of one benchmark at one commit.

    `median` and `samples` are in `unit`; asv keeps samples only when told to (`--record-samples`). `status`
    is "measured", "skipped" or "failed", and `median` is NaN unless the point was measured. `params` maps the
    parameters' names to their values. `date` is the commit's, `started` when asv began the benchmark. `records` are
    what was recorded of each round of a `device_*` benchmark: its samples, and what ran under which conditions.
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
    started: datetime.datetime = _NEVER


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
    # Not at the top: the message that asv is missing needs this module.
    from asv.benchmarks import Benchmarks
    from asv.util import load_json

    folder = Path(folder)
    described = _read(folder / "benchmarks.json", lambda path: load_json(path, Benchmarks.api_version))
    paths = [path for path in sorted(folder.glob(f"{machine or '*'}/*.json")) if path.name not in NOT_RESULTS]
    if not paths:
        of_whom = f" of machine {machine!r}" if machine else ""
        raise DataFileError(folder, "whole folder", f"no results{of_whom}: run `asv run` first")
    recorded = _recorded(folder.glob(f"{machine or '*'}/*{SUFFIX}"))
    rows = [row for path in paths for row in _read(path, lambda name: [*_rows(name, described, recorded)])]
    return sorted(rows, key=lambda row: (row.date, row.commit, row.benchmark))


def _read(path: Path, read: Callable[[str], Content]) -> Content:
    """What a reader makes of a file; its errors name the file."""
    from asv.util import UserError

    try:
        return read(str(path))
    except OSError as error:
        raise DataFileError(path, "whole file", f"{error.strerror}: run `asv run` first") from error
    except (UserError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"not what asv 0.6 writes ({error!r}): run `asv update`, or remove it and run `asv run` again"
        raise DataFileError(path, "results", reason) from error


# Machine's folder, commit, environment, benchmark, parameters.
_Key = tuple[Path, str, str, str, str]


def _recorded(paths: Iterable[Path]) -> dict[_Key, list[SampleRecord]]:
    """The records of some files, by the point that they are about."""
    recorded: dict[_Key, list[SampleRecord]] = defaultdict(list)
    for path in sorted(paths):
        for record in load_samples(path):
            key = (path.parent, record.commit, record.environment, record.benchmark, _sorted(record.params))
            recorded[key].append(record)
    return recorded


def _sorted(params: Mapping[str, Any]) -> str:
    return repr(sorted(params.items()))


def _rows(
    path: str, described: Mapping[str, Any], recorded: Mapping[_Key, Sequence[SampleRecord]]
) -> Iterator[ResultRow]:
    from asv.results import Results

    stored, folder = Results.load(path), Path(path).parent
    commit, environment = stored.commit_hash, stored.env_name
    for benchmark in stored.get_all_result_keys():
        about, axes = described.get(benchmark, {}), stored.get_result_params(benchmark)
        started, duration = _time(stored.started_at[benchmark] or 0), stored.duration[benchmark] or 0.0
        values, samples = stored.get_result_value(benchmark, axes), stored.get_result_samples(benchmark, axes)
        for params, value, taken in zip(_points(axes, about), values, samples, strict=True):
            key = (folder, commit, environment, benchmark, _sorted(params))
            yield ResultRow(
                machine=stored.params["machine"],
                environment=environment,
                commit=commit,
                date=_time(stored.date),
                benchmark=benchmark,
                params=params,
                # asv's convention: null is a failure, NaN a point that was skipped.
                status="failed" if value is None else "skipped" if math.isnan(value) else "measured",
                median=math.nan if value is None else float(value),
                samples=tuple(taken or ()),
                unit=about.get("unit", ""),
                records=of_result(recorded.get(key, ()), started, duration),
                started=started,
            )


def _time(milliseconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, tz=datetime.UTC)


def _points(axes: Sequence[Sequence[str]], about: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parameters of every combination, the last one fastest."""
    names = about.get("param_names", [])
    if len(names) != len(axes):
        # The benchmark has changed since: benchmarks.json describes the newest only.
        names = [f"param{index + 1}" for index in range(len(axes))]
    for combination in itertools.product(*axes):
        yield MappingProxyType(dict(zip(names, map(_value, combination), strict=True)))


def _value(text: str) -> Any:
    """The parameter that asv stored as its `repr`; the text itself where that is not a literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
