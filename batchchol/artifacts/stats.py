"""The cost of building a kernel, and the resources of its code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CompileStats:
    """What building a kernel took; `compile_seconds` is of the build that made the cache entry.

    GPU compilers also say how many `registers` a thread has, how many bytes of them are spilled to memory (stores
    and loads together), how much `shared_bytes` a block uses, and how many `stack_bytes` of memory a thread has to
    itself, for what is spilled and for arrays that are indexed by variables; None for a CPU's.
    """

    compile_seconds: float
    code_bytes: int
    compiler: str
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    stack_bytes: int | None = None


def read_stats(metadata: Mapping[str, Any]) -> CompileStats:
    """The numbers that metadata of a cache entry have, beside others.

    Raises
    ------
    ValueError
        If one of them is missing, or is no such number.
    """
    seconds: Any = metadata.get("compile_seconds")
    code: Any = metadata.get("code_bytes")
    compiler = metadata.get("compiler")
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"compile_seconds: got {seconds!r}, expected seconds")
    if not _is_count(code):
        raise ValueError(f"code_bytes: got {code!r}, expected a number of bytes")
    if not isinstance(compiler, str):
        raise ValueError(f"compiler: got {compiler!r}, expected its name")
    usage = {name: metadata.get(name) for name in ("registers", "spill_bytes", "shared_bytes", "stack_bytes")}
    for name, value in usage.items():
        if value is not None and not _is_count(value):
            raise ValueError(f"{name}: got {value!r}, expected a number or none")
    return CompileStats(seconds, code, compiler, **usage)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
