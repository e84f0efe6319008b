"""The system's C compiler: finding it, and compiling one generated source to a shared object.

Whatever happens (success, failure, time limit, Ctrl-C) only a source that did not compile is left;
`batchchol.artifacts.compilers` has the rest of the promise.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from batchchol.artifacts import elf
from batchchol.artifacts.compilers import (
    TIME_LIMIT,
    Compilation,
    Compiled,
    Compiler,
    Running,
    Unusable,
    first_usable,
    probe,
)
from batchchol.errors import CompileError, CompilerNotFound

_AUTOMATIC = ("cc", "gcc", "clang")
_HINT = "install one (Debian and Ubuntu: apt install gcc libc6-dev), or set BATCHCHOL_CC to a GCC or clang"
_NO_LIBRARY = re.compile(r"(?:error|ld): ([^\n]*(?:std\w+\.h|cannot find)[^\n]*)")
# The includes of every kernel, and nothing to compile.
_NOTHING = "#include <stddef.h>\n#include <stdint.h>\n#include <stdlib.h>\nint nothing(void) { return 0; }\n"
_PROBE_SECONDS = 10.0
_VERSION = re.compile(r"^(?P<line>.*\b(?:gcc|clang) version (?P<version>\d+(?:\.\d+)*).*)$", re.MULTILINE)
_TARGET = re.compile(r"^Target: (?P<target>\S+)$", re.MULTILINE)


def find_compiler() -> Compiler:
    """Find the C compiler: BATCHCHOL_CC, then CC, then cc, gcc, clang on the PATH.

    A variable that is set is obeyed or refused, never passed over.

    Raises
    ------
    CompilerNotFound
        If there is none; says how to get one, and what was wrong with those that were found.
    """
    return first_usable("C", _candidates(), _identify, _HINT)


def compile_shared(
    compiler: Compiler,
    source: str,
    flags: Sequence[str],
    *,
    time_limit: float = TIME_LIMIT,
    running: Running | None = None,
) -> Compiled:
    """Compile C source to a shared object, an ELF file.

    Parameters
    ----------
    compiler : Compiler
        From :func:`find_compiler`.
    source : str
        One C translation unit.
    flags : sequence of str
        Options after ``-shared -fPIC``, libraries included.
    time_limit : float
        Seconds after which the compiler and all its processes are killed.
    running : Running, optional
        Ends the compiler when it is stopped.

    Raises
    ------
    CompileError
        Status "timeout" at the time limit, "compile" for every other failure; the message has the first lines
        that the compiler wrote and where the source was kept.
    CompilerNotFound
        If it cannot compile an empty function either, for want of the C library.
    Stopped
        If `running` was stopped meanwhile.
    """
    command = (*compiler.command, "-shared", "-fPIC", "-o", "kernel.so", "kernel.c", *flags)
    compilation = Compilation("the C compiler", command, source, "kernel.c")
    try:
        return compilation.make(
            "kernel.so", lambda data: "" if elf.is_whole(data) else "no whole shared object", time_limit, running
        )
    except CompileError as error:
        if error.status == "compile" and (lacks := _lacks(compiler.path, compiler.arguments, running)):
            raise CompilerNotFound(f"no usable C compiler ({compiler.path}: {lacks}): {_HINT}") from error
        raise


@lru_cache(maxsize=16)
def _lacks(path: Path, arguments: tuple[str, ...], running: Running | None) -> str:
    """What keeps a compiler from making a shared object of an empty function: the C library, or nothing."""
    command = (str(path), *arguments, "-shared", "-fPIC", "-o", "nothing.so", "nothing.c")
    compilation = Compilation("the C compiler", command, _NOTHING, "nothing.c", keep=False)
    try:
        compilation.make("nothing.so", lambda _: "", _PROBE_SECONDS, running)
    except CompileError as error:
        found = _NO_LIBRARY.search(str(error))
        return found[1] if found else ""
    return ""


def _candidates() -> list[tuple[str, str]]:
    """Where each command came from, and the command as for a shell."""
    for variable in ("BATCHCHOL_CC", "CC"):
        value = os.environ.get(variable, "").strip()
        if value:
            return [(f"{variable}={value}", value)]
    return [(name, name) for name in _AUTOMATIC]


def _identify(path: Path, arguments: tuple[str, ...]) -> Compiler:
    """Identify a compiler by what it prints with -v."""
    answer = probe((str(path), *arguments, "-v"), _PROBE_SECONDS)
    version, target = _VERSION.search(answer), _TARGET.search(answer)
    if version is None or target is None:
        raise Unusable("does not present itself as GCC or clang")
    identity = " | ".join((version["line"].strip(), target["target"], shlex.join(arguments)))
    return Compiler(path, version["version"], identity, arguments)
