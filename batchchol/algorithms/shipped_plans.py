"""The table of plans that comes with the library: `plans.json`, made by `tune --from FILE --table plans.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from batchchol.defaults.tables import nearest, without_none

PATH = Path(__file__).with_name("plans.json")
# Batches that are near each other are apart by no more than this factor.
_NEAR = 8


@dataclass(frozen=True)
class Entry:
    """The choices of the plan that was the fastest of `batch` matrices of order n, and of the next best.

    Times are nanoseconds of a matrix.
    """

    dtype: str
    n: int
    batch: int
    plan: Mapping[str, str | int]
    ns: float
    runner_up: Mapping[str, str | int] | None = None
    runner_up_ns: float | None = None


@dataclass(frozen=True)
class PlanTable:
    """Entries, and what they were measured on: columns of `batchchol.measure.provenance.about`."""

    entries: tuple[Entry, ...]
    about: Mapping[str, str] = field(default_factory=dict)

    def entry(self, n: int, batch: int, dtype: str) -> Entry:
        """The one that serves: of the nearest order the nearest batch, both by ratio.

        Orders of which no batch near this one was measured do not count, unless there are no others.
        """
        own = [each for each in self.entries if each.dtype == dtype]
        near = {each.n for each in own if max(each.batch, batch) <= _NEAR * min(each.batch, batch)}
        order = min(near or {each.n for each in own}, key=lambda order: (abs(log(order / n)), order))
        return nearest([each for each in own if each.n == order], batch)

    def text(self) -> str:
        """The table as its file has it, an entry a line."""
        lines = ",\n".join(f"  {json.dumps(_values(each))}" for each in self.entries)
        return f'{{\n "about": {json.dumps(dict(self.about))},\n "entries": [\n{lines}\n ]\n}}\n'


def parse(text: str) -> PlanTable:
    """The table that a file has.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it is something else.
    """
    content = json.loads(text)
    return PlanTable(tuple(Entry(**each) for each in content["entries"]), content["about"])


@cache
def shipped() -> PlanTable:
    """The table of this version of the library."""
    return parse(PATH.read_text(encoding="utf-8"))


def _values(entry: Entry) -> dict[str, Any]:
    return without_none({name: getattr(entry, name) for name in Entry.__dataclass_fields__})
