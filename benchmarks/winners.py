"""Do the kernels that won a sweep stay as fast as they were?

`winners.json` has them: python -m batchchol report DATA --winners benchmarks/winners.json writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from .harness import Plan, _KernelQuestion, grid, library, skipping, supported

_FILE = Path(__file__).with_suffix(".json")
_SCHEMA = 1
_NAMES = (*grid.WITHOUT_CHOICES, "layout")
# What decides what is measured; a sweep that chooses the same again keeps the history.
_MEASURED = ("n", "math", "layout", "chunk", "threads", "spec")


def read(path: Path = _FILE) -> list[dict[str, Any]]:
    """The sets of winners of a file, one a target and batch.

    Raises
    ------
    ValueError
        If it is of another version of the schema.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["schema"] != _SCHEMA:
        raise ValueError(f"{path}: schema {content['schema']}, expected {_SCHEMA}: write it with this commit")
    return list(content["sets"])


def of(backend: str, sets: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The sets of a backend."""
    return [each for each in sets if (each["target"] == "cuda") == (backend == "cuda")]


def versioned(sets: Sequence[Mapping[str, Any]]) -> str:
    """The version of a benchmark of these winners: it changes if other kernels win."""
    measured = [[each[name] for name in ("target", "dtype", "batch")] for each in sets]
    measured += [[entry[name] for name in _MEASURED] for each in sets for entry in each["winners"]]
    return f"1-{sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()[:12]}"


def varied(sets: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """The values of each parameter that these winners have."""
    entries = [entry for each in sets for entry in each["winners"]]
    values = {name: {each[name] for each in sets} for name in ("dtype", "batch")}
    values |= {name: {entry[name] for entry in entries} for name in ("n", "threads", "math", "layout")}
    in_order = {"math": grid.MATH.index, "layout": grid.LAYOUT.index}
    return {name: tuple(sorted(found, key=in_order.get(name))) for name, found in values.items()}


SETS = read()


class _Winners(_KernelQuestion):
    """Base of the two: n × math × layout, at the dtype and the batch of the sweep."""

    @classmethod
    def planned(cls, point: grid.Point, backend: library.Backend) -> Plan:
        """The winner of that order, math and layout, on the backend's target."""
        entry = _entry(point, backend.target)
        with skipping():
            spec = library.KernelSpec.from_dict(entry["spec"])
            layout = library.Layout(spec.layout, entry["chunk"], spec.order)
        return supported(Plan(point, backend, spec, layout))


class GpuWinners(_Winners, names=_NAMES, backend=grid.CUDA, **varied(of("cuda", SETS))):
    """The winners of a GPU's sweep, on any GPU."""

    version = versioned(of("cuda", SETS))


class CpuWinners(_Winners, names=_NAMES, backend=grid.CPU, **varied(of("cpu", SETS))):
    """The winners of a CPU's sweep, on CPUs with that instruction set."""

    version = versioned(of("cpu", SETS))


def _entry(point: grid.Point, target: str) -> Mapping[str, Any]:
    there = [each for each in of(point.backend, SETS) if each["target"] == target]
    if not there:
        raise SkipNotImplemented(f"no sweep of target {target!r} is in {_FILE.name}")
    shared = {"dtype": point.dtype, "batch": point.batch}.items()
    wanted = {name: getattr(point, name) for name in ("n", "math", "layout", "threads")}.items()
    entries = (entry for each in there if shared <= each.items() for entry in each["winners"])
    found = next((entry for entry in entries if wanted <= entry.items()), None)
    if found is None:
        raise SkipNotImplemented(
            f"the sweep of {target!r} has no winner of n={point.n}, {point.math}, {point.layout}"
        )
    return dict(found)
