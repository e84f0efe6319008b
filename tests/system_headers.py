"""The system's SIMD headers, read once for all kernels that the tests compile: a quarter of what small ones take."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from batchchol.compiler import find_compiler
from batchchol.errors import CompilerNotFound
from batchchol.native import COMMON_FLAGS, supported_targets
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
    if compiler.family != "gcc" or any(os.environ.get(name) for name in ("BATCHCHOL_CC", "CC")):
        return None
    header = folder / "system.h"
    (folder / "system.h.gch").mkdir(parents=True, exist_ok=True)
    header.write_text(_TEXT)
    for target in supported_targets():
        # Another worker may be at it too: whoever is last replaces the other's.
        made, precompiled = folder / f"{target}-{os.getpid()}.gch", folder / "system.h.gch" / target
        if not precompiled.exists():
            flags = (*COMMON_FLAGS, *SIMD_TARGETS[target].flags, "-fPIC", "-x", "c-header")
            if subprocess.run([*compiler.command, *flags, header, "-o", made], check=False).returncode:
                return None
            made.replace(precompiled)
    return shlex.join([*compiler.command, "-include", str(header)])
