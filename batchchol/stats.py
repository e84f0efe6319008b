"""What building a kernel took and made."""

from __future__ import annotations

from dataclasses import dataclass


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
