"""The search space of plans for larger matrices: `plan_space.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path

PATH = Path(__file__).with_name("plan_space.toml")


def combinations(kind: str) -> Iterator[dict[str, int]]:
    """The choices of each plan of a kind by name, the first name's values changing slowest."""
    for table in _space()[kind]:
        for values in product(*table.values()):
            yield dict(zip(table, values, strict=True))


@cache
def _space() -> Mapping[str, list[dict[str, list[int]]]]:
    return tomllib.loads(PATH.read_text(encoding="utf-8"))
