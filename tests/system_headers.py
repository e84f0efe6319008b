"""A C compiler that takes half the time: the system's headers are read once for all kernels, some passes left out."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
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
# GCC's passes that take over half the time of -O3, and change no result: what is fused, and what is inlined, stays.
_LEFT_OUT = (
    "-fira-algorithm=priority",
    "-fno-branch-count-reg",
    "-fno-caller-saves",
    "-fno-code-hoisting",
    "-fno-compare-elim",
    "-fno-cprop-registers",
    "-fno-crossjumping",
    "-fno-cse-follow-jumps",
    "-fno-dse",
    "-fno-forward-propagate",
    "-fno-gcse",
    "-fno-gcse-after-reload",
    "-fno-guess-branch-probability",
    "-fno-if-conversion",
    "-fno-if-conversion2",
    "-fno-ipa-cp",
    "-fno-ipa-icf",
    "-fno-ipa-modref",
    "-fno-ipa-sra",
    "-fno-ipa-vrp",
    "-fno-ivopts",
    "-fno-move-loop-invariants",
    "-fno-optimize-sibling-calls",
    "-fno-peel-loops",
    "-fno-predictive-commoning",
    "-fno-ree",
    "-fno-reorder-blocks",
    "-fno-rerun-cse-after-loop",
    "-fno-schedule-insns2",
    "-fno-shrink-wrap",
    "-fno-split-loops",
    "-fno-split-paths",
    "-fno-ssa-phiopt",
    "-fno-thread-jumps",
    "-fno-tree-bit-ccp",
    "-fno-tree-ccp",
    "-fno-tree-copy-prop",
    "-fno-tree-dominator-opts",
    "-fno-tree-dse",
    "-fno-tree-forwprop",
    "-fno-tree-fre",
    "-fno-tree-loop-distribute-patterns",
    "-fno-tree-loop-distribution",
    "-fno-tree-loop-im",
    "-fno-tree-loop-ivcanon",
    "-fno-tree-loop-vectorize",
    "-fno-tree-pre",
    "-fno-tree-pta",
    "-fno-tree-scev-cprop",
    "-fno-tree-slp-vectorize",
    "-fno-tree-switch-conversion",
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
    header, command = folder / "system.h", (*compiler.command, *_left_out(compiler.command), *faster_linker())
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


@cache
def read_ahead(command: tuple[str, ...]) -> tuple[str, ...]:
    """Options that have a GCC with these flags find the system's headers read; none for another compiler."""
    if Path(command[0]).name not in ("cc", "gcc"):
        return ()
    name = hashlib.sha256(shlex.join(command).encode()).hexdigest()[:16]
    header = Path(os.environ["BATCHCHOL_CACHE"]).with_name(f"headers-{name}") / "system.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    with open(header.with_name("lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        header.write_text(_TEXT)
        made = _made(header, header.with_suffix(".h.gch"), (*command, "-x", "c-header"))
    return ("-include", str(header)) if made else ()


@cache
def faster_linker() -> tuple[str, ...]:
    """The option that has GNU's faster linker link, where it is installed."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


def _left_out(command: Sequence[str]) -> tuple[str, ...]:
    """Nothing, if this GCC does not know all of them."""
    words = [*command, *_LEFT_OUT, "-fsyntax-only", "-x", "c", os.devnull]
    return () if subprocess.run(words, capture_output=True, check=False).returncode else _LEFT_OUT


def _precompile(header: Path, target: str, command: Sequence[str]) -> bool:
    """Whether the header is there for a target."""
    flags = (*COMMON_FLAGS, *SIMD_TARGETS[target].flags, "-fPIC", "-x", "c-header")
    return _made(header, header.with_suffix(".h.gch") / target, (*command, *flags))


def _made(header: Path, precompiled: Path, command: Sequence[str]) -> bool:
    """Whether a precompiled header is there; half written it has another name."""
    if precompiled.exists():
        return True
    made = header.with_name(f"{precompiled.name}.made")
    if subprocess.run([*command, header, "-o", made], check=False).returncode:
        return False
    made.replace(precompiled)
    return True
