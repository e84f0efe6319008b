"""Which spec is used when nobody says: measured tables, one a target, kept as package data."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from importlib.resources import files

from kernelgen import TARGETS, KernelSpec, Problem, SpecError, ThreadSchedule

# Tables are measured on these; a target without one uses the table of the target with as many registers.
_TABLE = "defaults.json"


@dataclass(frozen=True)
class Choice:
    """The schedule to use up to order n, on batches of `chunk` alone if that is given.

    The other fields are those of `ThreadSchedule`.
    """

    n: int
    nb: int
    looking: str
    unroll: str
    prefetch: bool | None = None
    staged: bool | None = None
    threads: int | None = None
    cache: str | None = None
    stride: int | None = None
    chunk: int | None = None

    @classmethod
    def of(cls, n: int, schedule: ThreadSchedule, chunk: int | None = None) -> Choice:
        """The choice of a schedule up to order n."""
        return cls(n, chunk=chunk, **{name: getattr(schedule, name) for name in _scheduled()})

    def schedule(self, n: int, math: str) -> ThreadSchedule:
        """The schedule for order n, at most the choice's own."""
        values = {name: getattr(self, name) for name in _scheduled()}
        return ThreadSchedule(math=math, **values | {"nb": min(self.nb, n)})


def _scheduled() -> list[str]:
    return [field.name for field in fields(Choice) if field.name not in ("n", "chunk")]


@lru_cache(maxsize=4096)
def default_spec(
    n: int,
    *,
    target: str,
    dtype: str = "float32",
    layout: str = "chunked",
    chunk: int | None = None,
    order: str = "col",
    math: str = "ieee",
    uplo: str = "lower",
    in_place: bool = False,
) -> KernelSpec:
    """The spec that the measured table of a target names for matrices of order `n`.

    With `chunk`, that of the batch, it is the best on that chunk, and may run on no other.

    Raises
    ------
    SpecError
        If an argument is outside what can be built.
    """
    if target not in TARGETS:
        raise SpecError(f"target={target!r} cannot be built: use one of {', '.join(map(repr, TARGETS))}")
    problem = Problem(n, dtype, uplo)
    table = _choices(target, dtype)
    own = [choice for choice in table if choice.chunk is not None and choice.chunk == chunk]
    choices = own if own and layout == "chunked" else [choice for choice in table if choice.chunk is None]
    choice = choices[min(bisect_left([entry.n for entry in choices], n), len(choices) - 1)]
    schedule = choice.schedule(n, math)
    if layout == "canonical" and not TARGETS[target].gpu:
        schedule = replace(schedule, staged=True)
    return KernelSpec(problem, layout, order, schedule, target, in_place)


@cache
def _choices(target: str, dtype: str) -> tuple[Choice, ...]:
    tables = json.loads((files("batchchol") / _TABLE).read_text())["targets"]
    return tuple(Choice(**entry) for entry in tables[target][dtype])
