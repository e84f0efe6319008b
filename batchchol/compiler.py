"""The system's C compiler: finding it, and compiling one generated source to a shared object.

The compiler runs in a private folder and in its own process group, under a time limit. Whatever happens
(success, failure, time limit, Ctrl-C) the folder and the processes are gone afterwards; only the whole shared
object, or the source that did not compile, is left.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

from batchchol.cache import default_folder, replace_file
from batchchol.errors import CacheError, CompileError, CompilerNotFound

Family = Literal["gcc", "clang"]

_AUTOMATIC = ("cc", "gcc", "clang")
_HINT = "install one (Debian and Ubuntu: apt install gcc), or set BATCHCHOL_CC to a GCC or clang"
_PROBE_SECONDS = 10.0
_ANSWER_LINES = 100
_QUOTED_LINES = 12
_QUOTED_COLUMNS = 300
_VERSION = re.compile(r"^(?P<line>.*\b(?P<family>gcc|clang) version (?P<version>\d+(?:\.\d+)*).*)$", re.MULTILINE)
_TARGET = re.compile(r"^Target: (?P<target>\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Compiler:
    """A usable C compiler.

    Attributes
    ----------
    path : Path
        Its executable, absolute.
    family : {"gcc", "clang"}
        Whose options and extensions it has.
    version : str
        Such as ``"12.2.0"``.
    identity : str
        Its full version line, target and fixed arguments: what belongs in a cache key.
    arguments : tuple of str
        Arguments that always come first, for a BATCHCHOL_CC such as ``ccache gcc``.
    """

    path: Path
    family: Family
    version: str
    identity: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The words that start it."""
        return (str(self.path), *self.arguments)


def find_compiler() -> Compiler:
    """Find the C compiler: BATCHCHOL_CC, then CC, then cc, gcc, clang on the PATH.

    A variable that is set is obeyed or refused, never passed over.

    Raises
    ------
    CompilerNotFound
        If there is none; says how to get one, and what was wrong with those that were found.
    """
    reasons = []
    for origin, command in _candidates():
        try:
            return _examine(command)
        except _Unusable as error:
            reasons.append(f"{origin} {error}")
    raise CompilerNotFound(f"no usable C compiler ({'; '.join(reasons)}): {_HINT}")


def compile_shared(
    compiler: Compiler, source: str, output: Path, flags: Sequence[str], *, time_limit: float = 120.0
) -> float:
    """Compile C source to a shared object at `output`, which appears whole or not at all.

    Parameters
    ----------
    compiler : Compiler
        From :func:`find_compiler`.
    source : str
        One C translation unit.
    output : Path
        Where the shared object goes (an ELF file).
    flags : sequence of str
        Options after ``-shared -fPIC``, libraries included.
    time_limit : float
        Seconds after which the compiler and all its processes are killed.

    Returns
    -------
    float
        Wall-clock seconds that the compiler took.

    Raises
    ------
    CompileError
        Status "timeout" at the time limit, "compile" for every other failure; the message has the first lines
        that the compiler wrote and where the source was kept.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="batchchol-") as folder:
            seconds, shared = _compile_in(Path(folder), compiler, source, flags, time_limit)
            replace_file(output, shared)
    except OSError as error:
        raise CompileError(
            "compile",
            f"cannot compile to {output} with {compiler.path} ({error}): make room and give write permission "
            f"there and in the temporary folder {tempfile.gettempdir()} (TMPDIR chooses another)",
        ) from error
    return seconds


class _Unusable(Exception):
    """Why one candidate is not a usable compiler, as the end of a sentence that begins with its name."""


def _candidates() -> list[tuple[str, str]]:
    """Where each command came from, and the command as for a shell."""
    for variable in ("BATCHCHOL_CC", "CC"):
        value = os.environ.get(variable, "").strip()
        if value:
            return [(f"{variable}={value}", value)]
    return [(name, name) for name in _AUTOMATIC]


def _examine(command: str) -> Compiler:
    try:
        program, *arguments = shlex.split(command)
    except ValueError as error:
        raise _Unusable(f"cannot be read as a command ({error})") from error
    found = shutil.which(program)
    if found is None:
        raise _Unusable("is not an executable on the PATH")
    # The link itself, not what it points to: compiler wrappers look at the name they were started by.
    path = Path(os.path.abspath(found))
    return _identify(path, tuple(arguments), path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _identify(path: Path, arguments: tuple[str, ...], modified: int) -> Compiler:
    """Ask the compiler who it is, once; `modified`, its time stamp, has an upgraded one asked anew."""
    answer = _probe((str(path), *arguments, "-v"))
    version, target = _VERSION.search(answer), _TARGET.search(answer)
    if version is None or target is None:
        raise _Unusable("does not present itself as GCC or clang")
    family: Family = "gcc" if version["family"] == "gcc" else "clang"
    identity = " | ".join((version["line"].strip(), target["target"], shlex.join(arguments)))
    return Compiler(path, family, version["version"], identity, arguments)


def _probe(command: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory(prefix="batchchol-") as folder:
        try:
            _, expired, _ = _run(command, Path(folder), _PROBE_SECONDS)
        except OSError as error:
            raise _Unusable(f"cannot be started ({error})") from error
        if expired:
            raise _Unusable(f"did not tell its version within {_PROBE_SECONDS:g} s")
        return _first_lines(Path(folder, "messages"), _ANSWER_LINES)


def _compile_in(
    folder: Path, compiler: Compiler, source: str, flags: Sequence[str], time_limit: float
) -> tuple[float, bytes]:
    (folder / "kernel.c").write_text(source, encoding="utf-8")
    command = (*compiler.command, "-shared", "-fPIC", "-o", "kernel.so", "kernel.c", *flags)
    status, expired, seconds = _run(command, folder, time_limit)
    words = _first_lines(folder / "messages", _QUOTED_LINES)
    if expired and status != 0:
        reason = f"was stopped at its time limit of {time_limit:g} s (unroll less, or allow more time)"
        raise _failure("timeout", command, reason, words, source)
    if status != 0:
        reason = f"failed with exit status {status}" if status > 0 else f"was killed by signal {-status}"
        raise _failure("compile", command, reason, words, source)
    shared = folder / "kernel.so"
    data = shared.read_bytes() if shared.is_file() else b""
    if not _is_whole_elf(data):
        reason = f"reported success but wrote no whole shared object ({len(data)} bytes)"
        raise _failure("compile", command, reason, words, source)
    return seconds, data


def _run(command: Sequence[str], folder: Path, time_limit: float) -> tuple[int, bool, float]:
    """Run a command in a folder; return its exit status, whether the time limit stopped it, and seconds.

    Its messages go to a file and not a pipe: a pipe would stay open as long as any process it left behind.
    """
    # Its temporary files go where they are removed, and its messages are the ones this module reads.
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
    with open(folder / "messages", "wb") as messages:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            start_new_session=True,
        )
        expired = _wait(process, time_limit)
        return process.returncode, expired, time.perf_counter() - start


def _wait(process: subprocess.Popen[bytes], time_limit: float) -> bool:
    """Wait for a process group leader; kill its group at the time limit (then True) and on any exception."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _kill_group(process)

    # A timer, since Popen.wait(timeout) polls every 50 ms and compile seconds are a measured quantity.
    timer = threading.Timer(time_limit, expire)
    timer.daemon = True
    try:
        timer.start()
        process.wait()
    except BaseException:
        _kill_group(process)
        process.wait()
        raise
    finally:
        timer.cancel()
    return expired.is_set()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Its session began with it, so the group's number is its own and holds nobody else's processes.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _first_lines(path: Path, count: int) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return "\n".join(line.rstrip()[:_QUOTED_COLUMNS] for line in islice(stream, count))


def _is_whole_elf(data: bytes) -> bool:
    """Whether these are a 64-bit ELF file whose section table, which linkers write last, lies inside it."""
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return False
    order = "<" if data[5] == 1 else ">"
    (table,) = struct.unpack_from(order + "Q", data, 0x28)
    size, count = struct.unpack_from(order + "HH", data, 0x3A)
    return bool(table > 0 and count > 0 and table + size * count <= len(data))


def _failure(status: str, command: Sequence[str], reason: str, words: str, source: str) -> CompileError:
    quoted = f"\n{words}" if words else ""
    return CompileError(status, f"the C compiler {reason}: {shlex.join(command)}{quoted}\n{_keep(source)}")


def _keep(source: str) -> str:
    """Keep a source that did not compile, once however often it fails, and say where."""
    data = source.encode()
    try:
        folder = default_folder() / "failed"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.c"
        replace_file(path, data)
    except (OSError, CacheError) as error:
        return f"the source could not be kept ({error})"
    return f"the source was kept in {path}"
