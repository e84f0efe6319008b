"""The kernels that won a sweep, as data that an asv suite measures on every commit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from batchchol.errors import BatchcholError, DataFileError
from batchchol.files import read_file, replace_file
from batchchol.measure.dataset import read_correct
from batchchol.measure.row import Row
from batchchol.tune.choosing.make_tables import period
from batchchol.tune.choosing.winners import grouped, rounded, surest

SCHEMA = 1
"""The version of the file's schema; docs/benchmarks.md describes it."""

_ABOUT = "The fastest kernels of sweeps, by order, math and layout: python -m batchchol report DATA --winners FILE"
_SAME = ("target", "dtype", "batch", "protocol")


def choose(
    path: Path, dtype: str | None = None, protocol: str | None = None, batch: int | None = None
) -> dict[str, Any]:
    """The fastest kernel of each order, math and layout, of those whose own code was measured, as a set of the file.

    Of points that were measured with fewer and with more samples the latter decide. What is None is the commonest.

    Parameters
    ----------
    path : Path
        A data set's Parquet file or a CSV file of `tune`: its hash goes with the winners.

    Raises
    ------
    DataFileError
        If it cannot be read, or has no such point.
    BatchcholError
        If it is a folder, or has no point of what is asked for.
    """
    if path.is_dir():
        raise BatchcholError(f"--winners: {path} is a folder that may grow: give the file that `tune --data` merged")
    read = read_correct(path)
    rows = _narrowed(read, dtype, protocol, batch)
    sizes = grouped(rows, lambda row: (row.spec.problem.n, row.spec.problem.math, row.spec.layout))
    first, last = rows[0], read[-1]
    return {
        "target": first.spec.target,
        "dtype": first.spec.problem.dtype,
        "batch": first.point.batch,
        "protocol": first.point.protocol,
        "device": last.about["device"],
        "toolkit": last.toolkit,
        "date": period(row.day for row in read),
        "data": path.name,
        "sha256": sha256(read_file(path)).hexdigest(),
        "winners": [_entry(surest(sizes[size])) for size in sorted(sizes)],
    }


def write(path: Path, winners: Mapping[str, Any]) -> int:
    """Put winners into a file, in place of those of the same target, dtype, batch and protocol; how many it has then.

    Raises
    ------
    DataFileError
        If the file is there and is none of winners, is of another version of the schema, or cannot be written.
    """
    kept = [each for each in _read(path) if any(each[name] != winners[name] for name in _SAME)]
    every = sorted([*kept, winners], key=lambda each: tuple(str(each[name]) for name in _SAME))
    text = f'{{"schema": {SCHEMA},\n "about": {json.dumps(_ABOUT)},\n "sets": [\n{",".join(map(_text, every))}]}}\n'
    replace_file(path, text.encode())
    return sum(len(each["winners"]) for each in every)


def _narrowed(rows: Sequence[Row], dtype: str | None, protocol: str | None, batch: int | None) -> Sequence[Row]:
    """The rows of one dtype, protocol and batch: those asked for, or the commonest."""
    asked: tuple[tuple[str, Any, Callable[[Row], Any]], ...] = (
        ("dtype", dtype, lambda row: row.spec.problem.dtype),
        ("protocol", protocol, lambda row: row.point.protocol),
        ("batch", batch, lambda row: row.point.batch),
    )
    for name, wanted, value in asked:
        there = Counter(map(value, rows))
        if wanted is not None and wanted not in there:
            known = ", ".join(map(str, sorted(there)))
            raise BatchcholError(f"--{name}: got {wanted!r}, and no kernel's own code was measured with it: {known}")
        chosen = there.most_common(1)[0][0] if wanted is None else wanted
        rows = [row for row in rows if value(row) == chosen]
    return rows


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        content = json.loads(read_file(path))
        version, sets = content["schema"], content["sets"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataFileError(path, "reading", f"not a file of winners ({error}): name another one") from error
    if version != SCHEMA:
        raise DataFileError(path, "schema", f"version {version}, expected {SCHEMA}: name another file")
    return list(sets)


def _entry(row: Row) -> dict[str, Any]:
    spec, point = row.spec, row.point
    return {
        "n": spec.problem.n,
        "math": spec.problem.math,
        "layout": spec.layout,
        # Files from before a chunk was a choice do not name it.
        "chunk": (point.chunk or spec.lanes) if spec.layout == "chunked" else None,
        "threads": point.threads,
        "ns": rounded(row.median_seconds / point.batch * 1e9, 6),
        "spec": spec.to_dict(),
    }


def _text(each: Mapping[str, Any]) -> str:
    """A set of winners, an entry a line."""
    common = json.dumps({name: value for name, value in each.items() if name != "winners"})
    lines = ",\n".join(f"   {json.dumps(entry, separators=(',', ':'))}" for entry in each["winners"])
    return f'  {common[:-1]}, "winners": [\n{lines}\n  ]}}\n'
