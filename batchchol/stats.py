"""What building a kernel took and made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompileStats:
    """What building a kernel took; `compile_seconds` is of the build that made the cache entry.

    GPU compilers also say how many `registers` a thread has, how many bytes of them are spilled to memory (stores
    and loads together), and how much `shared_bytes` a block uses; None for a CPU's.
    """

    compile_seconds: float
    code_bytes: int
    compiler: str
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
