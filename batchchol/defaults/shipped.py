"""The tables of defaults that come with the library, and which of them serves a machine."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from batchchol.defaults.tables import Table, parse
from kernelgen import TARGETS, SpecError
from kernelgen.targets import CUDA

_FILE = "shipped.json"


class Source(NamedTuple):
    """The table that serves a machine, and why that one."""

    table: Table
    reason: str


@cache
def source_of(target: str, arch: str | None = None) -> Source:
    """The table that serves a target: on a GPU that of its architecture, else of the nearest one that was measured.

    Nearest is who differs least in the major compute capability, then in the number as a whole, the lower of two. A
    GPU of unknown architecture is served as the newest.

    Raises
    ------
    SpecError
        If the target is unknown, or the architecture no GPU's.
    """
    if target not in TARGETS:
        raise SpecError(f"target={target!r} cannot be built: use one of {', '.join(map(repr, TARGETS))}")
    tables = [table for table in shipped_tables().values() if table.target == target]
    if target != CUDA.name:
        if arch is not None:
            raise SpecError(f"arch={arch!r} cannot be built: target {target!r} is no GPU's, use None")
        return Source(tables[0], f"table {target}")
    newest_first = sorted(tables, key=lambda table: -_number(table.name))
    if arch is None:
        chosen = newest_first[0]
        return Source(chosen, f"table {chosen.name}, the newest: the architecture is not known")
    wanted = _number(arch)
    chosen = min(reversed(newest_first), key=lambda table: _distance(_number(table.name), wanted))
    if _number(chosen.name) == wanted:
        return Source(chosen, f"table {chosen.name}")
    return Source(chosen, f"table {chosen.name}, the nearest to {arch} of those that were measured: predicted")


def _distance(number: int, other: int) -> tuple[int, int]:
    return abs(number // 10 - other // 10), abs(number - other)


def _number(arch: str) -> int:
    from batchchol.artifacts.nvcc import parse_architecture

    try:
        return parse_architecture(arch)[1]
    except (TypeError, ValueError):
        works = "use the name of a GPU architecture, such as 'sm_90'"
        raise SpecError(f"arch={arch!r} cannot be built: {works}") from None


@cache
def shipped_tables() -> dict[str, Table]:
    """The tables that come with the package."""
    return parse((files("batchchol.defaults") / _FILE).read_text(encoding="utf-8"))
