"""The system's SIMD headers, read once for all kernels that the tests compile: a quarter of what small ones take."""

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


def compiler_command(folder: Path) -> str | None:
    """This machine's compiler for BATCHCHOL_CC, with the headers precompiled for each target.

    None where that is not GCC, or is somebody's choice. Flags that none was precompiled for have the headers read.
    """
    try:
        compiler = find_compiler()
    except CompilerNotFound:
        return None
    if "gcc version" not in compiler.identity or any(os.environ.get(name) for name in ("BATCHCHOL_CC", "CC")):
        return None
    header = folder / "system.h"
    (folder / "system.h.gch").mkdir(parents=True, exist_ok=True)
    header.write_text(_TEXT)
    # First those that no other worker is at, then those that one was at, in case it failed.
    for waiting in (fcntl.LOCK_NB, 0):
        for target in supported_targets():
            with open(folder / f"{target}.lock", "w") as lock, suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | waiting)
                if not _precompile(header, target, compiler.command):
                    return None
    return shlex.join([*compiler.command, "-include", str(header)])


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
