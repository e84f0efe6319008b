"""Which spec is used when nobody says: measured tables, one a target, kept as package data."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

from kernelgen import TARGETS, KernelSpec, Problem, SpecError, ThreadSchedule

# Tables are measured on these; a target without one uses the table of the target with as many registers.
_TABLE = "defaults.json"


@dataclass(frozen=True)
class Choice:
    """The schedule to use up to order n."""

    n: int
    nb: int
    looking: str
    unroll: str
    prefetch: bool
    staged: bool


@lru_cache(maxsize=4096)
def default_spec(
    n: int,
    *,
    target: str,
    dtype: str = "float32",
    layout: str = "chunked",
    order: str = "col",
    math: str = "ieee",
    uplo: str = "lower",
    in_place: bool = False,
) -> KernelSpec:
    """The spec that the measured table of a target names for matrices of order `n`.

    Raises
    ------
    SpecError
        If an argument is outside what can be built.
    """
    if target not in TARGETS:
        raise SpecError(f"target={target!r} cannot be built: use one of {', '.join(map(repr, TARGETS))}")
    problem = Problem(n, dtype, uplo)
    choices = _choices(target, dtype)
    choice = choices[min(bisect_left([entry.n for entry in choices], n), len(choices) - 1)]
    nb, unroll = min(choice.nb, n), choice.unroll
    staged = choice.staged or layout == "canonical"
    schedule = ThreadSchedule(nb, choice.looking, unroll, math, choice.prefetch, staged)
    return KernelSpec(problem, layout, order, schedule, target, in_place)


@cache
def _choices(target: str, dtype: str) -> tuple[Choice, ...]:
    tables = json.loads((files("batchchol") / _TABLE).read_text())["targets"]
    return tuple(Choice(**entry) for entry in tables[target][dtype])
