"""What a kernel takes of a GPU, as CUDA's assembler reports it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Usage:
    """One kernel's resources; None where the assembler did not say.

    `registers` of a thread; `spill_bytes`, stored and loaded; `stack_bytes` of local memory, what is indexed by
    variables included; `shared_bytes`, static.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None


def read_usage(messages: str) -> Mapping[str, Usage]:
    """The resources of each kernel in the messages of `nvcc --resource-usage`."""
    _, *sections = _ENTRY.split(messages)
    return {entry: _usage(section) for entry, section in zip(sections[::2], sections[1::2], strict=True)}


def _usage(section: str) -> Usage:
    registers = _REGISTERS.search(section)
    if registers is None:
        return Usage()
    # Functions that were not inlined have lines of their own in their kernel's section.
    memory = [tuple(map(int, numbers)) for numbers in _MEMORY.findall(section)]
    shared = _SHARED.search(section)
    return Usage(
        registers=int(registers[1]),
        spill_bytes=sum(stores + loads for _, stores, loads in memory),
        stack_bytes=sum(stack for stack, _, _ in memory),
        shared_bytes=int(shared[1]) if shared else 0,
    )
