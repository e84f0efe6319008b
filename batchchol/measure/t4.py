"""A data set as the autotuning community's T4 results, which Kernel Tuner, KTT and their tools read and write.

https://github.com/AutoTuningAssociation/autotuning_methodology has the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from batchchol import __version__
from batchchol.files import replace_file
from batchchol.measure.row import choice_columns
from batchchol.operations.roofline import flops

SCHEMA_VERSION = "1.1.0"

INVALIDITY: Mapping[str, str] = MappingProxyType(
    {
        "correct": "correct",
        "compile": "compile",
        "timeout": "timeout",
        "wrong": "correctness",
        "runtime": "runtime",
        "unsupported": "constraints",
    }
)
"""What T4 calls the statuses."""

_PROBLEM = ("op", "n", "dtype", "uplo", "layout", "order", "chunk", "batch", "threads", "protocol", "family")
_PROFILE = ("registers", "spill_bytes", "shared_bytes", "code_bytes", "occupancy")
_UNITS = {"spill_bytes": "B", "shared_bytes": "B", "code_bytes": "B"}
# Times are in milliseconds, as Kernel Tuner has them.
_PER_SECOND = 1e3


def results(table: Any) -> dict[str, Any]:
    """The T4 object of a data set as `dataset.read` returns it: a result for each row, the time as its objective."""
    rows = table.to_pylist()
    # Columns with one value, or none, are no parameters, except the problem and the batch, which are always given.
    chosen = [name for name in choice_columns() if any(row[name] is not None for row in rows)]
    parameters = list(dict.fromkeys((*_PROBLEM, *chosen)))
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": _metadata(rows),
        "results": [_result(row, parameters) for row in rows],
    }


def export(table: Any, file: Path) -> int:
    """Write the T4 file of a data set; return how many results it has.

    Raises
    ------
    DataFileError
        If it cannot be written.
    """
    found = results(table)
    replace_file(file, json.dumps(found, indent=1, allow_nan=False).encode())
    return len(found["results"])


def _metadata(rows: list[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0] if rows else {}
    values = {
        "compute_api": "CUDA" if first.get("gpu") else None,
        "platform": first.get("toolkit") or first.get("compiler"),
        "device": first.get("device"),
        "autotuner": "batchchol",
        "autotuner_version": first.get("version") or __version__,
        "timestamp": min((row["date"] for row in rows if row["date"]), default=None),
        "timeunit": "milliseconds",
    }
    return {name: value for name, value in values.items() if value is not None}


def _result(row: Mapping[str, Any], parameters: list[str]) -> dict[str, Any]:
    correct = row["status"] == "correct"
    return {
        "timestamp": row["date"] or "",
        "configuration": {name: row[name] for name in parameters},
        "objectives": ["time"],
        "times": _times(row),
        "invalidity": INVALIDITY[row["status"]],
        "correctness": int(correct),
        "measurements": _measurements(row) if correct else [],
    }


def _times(row: Mapping[str, Any]) -> dict[str, Any]:
    samples = [seconds * _PER_SECOND for seconds in row["sample_seconds"] or ()]
    times: dict[str, Any] = {"runtimes": samples, "search_algorithm": 0.0}
    columns = {
        "compilation_time": "compile_seconds",
        "validation": "check_seconds",
        "kernel_overhead": "floor_seconds",
    }
    times |= {name: row[column] * _PER_SECOND for name, column in columns.items() if row[column] is not None}
    if row["wall_seconds"] is not None:
        spent = sum(samples) * (row["calls"] or 1) + times.get("validation", 0.0)
        times["framework"] = max(0.0, row["wall_seconds"] * _PER_SECOND - spent)
    return times


def _measurements(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    seconds = row["median_seconds"]
    found: list[tuple[str, float | None, str]] = [
        ("time", seconds * _PER_SECOND, "ms"),
        ("GFLOP/s", flops(row["n"], op=row["op"]) * row["batch"] / seconds / 1e9, "GFLOP/s"),
        ("ratio", row["ratio"], ""),
        *((name, row[name], _UNITS.get(name, "")) for name in _PROFILE),
    ]
    return [{"name": name, "value": value, "unit": unit} for name, value, unit in found if value is not None]
