"""A C compiler that takes half the time: the system's headers are read once for all kernels, some passes left out."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from batchchol.artifacts.c_compiler import find_compiler
from batchchol.artifacts.c_library import COMMON_FLAGS, supported_targets
from batchchol.errors import CompilerNotFound
from kernelgen import SIMD_TARGETS

_TEXT = """#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
"""
# GCC's passes that take half the time of -O3, and change no result: what is fused, and what is inlined, stays.
_LEFT_OUT = (
    "-fira-algorithm=priority",
    "-fno-code-hoisting",
    "-fno-crossjumping",
    "-fno-gcse",
    "-fno-gcse-after-reload",
    "-fno-ipa-cp",
    "-fno-ipa-icf",
    "-fno-ipa-modref",
    "-fno-ipa-sra",
    "-fno-ipa-vrp",
    "-fno-ivopts",
    "-fno-peel-loops",
    "-fno-predictive-commoning",
    "-fno-ree",
    "-fno-rerun-cse-after-loop",
    "-fno-schedule-insns2",
    "-fno-split-loops",
    "-fno-split-paths",
    "-fno-tree-bit-ccp",
    "-fno-tree-dominator-opts",
    "-fno-tree-dse",
    "-fno-tree-fre",
    "-fno-tree-loop-distribution",
    "-fno-tree-loop-vectorize",
    "-fno-tree-pre",
    "-fno-tree-pta",
    "-fno-tree-slp-vectorize",
    "-fno-tree-tail-merge",
    "-fno-tree-vrp",
    "-fno-unswitch-loops",
)


def compiler_command(folder: Path) -> str | None:
    """This machine's compiler for BATCHCHOL_CC: without some passes, the headers precompiled for each target.

    None where that is not GCC, or is somebody's choice. Flags that none was precompiled for have the headers read.
    """
    try:
        compiler = find_compiler()
    except CompilerNotFound:
        return None
    if "gcc version" not in compiler.identity or any(os.environ.get(name) for name in ("BATCHCHOL_CC", "CC")):
        return None
    header, command = folder / "system.h", (*compiler.command, *_left_out(compiler.command))
    (folder / "system.h.gch").mkdir(parents=True, exist_ok=True)
    header.write_text(_TEXT)
    # First those that no other worker is at, then those that one was at, in case it failed.
    for waiting in (fcntl.LOCK_NB, 0):
        for target in supported_targets():
            with open(folder / f"{target}.lock", "w") as lock, suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | waiting)
                if not _precompile(header, target, command):
                    return None
    return shlex.join([*command, "-include", str(header)])


def _left_out(command: Sequence[str]) -> tuple[str, ...]:
    """Nothing, if this GCC does not know all of them."""
    words = [*command, *_LEFT_OUT, "-fsyntax-only", "-x", "c", os.devnull]
    return () if subprocess.run(words, capture_output=True, check=False).returncode else _LEFT_OUT


def _precompile(header: Path, target: str, command: Sequence[str]) -> bool:
    """Whether the header is there for a target; half written it has another name."""
    precompiled = header.with_suffix(".h.gch") / target
    if precompiled.exists():
        return True
    flags = (*COMMON_FLAGS, *SIMD_TARGETS[target].flags, "-fPIC", "-x", "c-header")
    made = header.with_name(f"{target}.gch")
    if subprocess.run([*command, *flags, header, "-o", made], check=False).returncode:
        return False
    made.replace(precompiled)
    return True
