"""Running compilers: what the C compiler's and the CUDA compiler's stages share.

A compiler runs in a private folder and in its own process group, under a time limit. Whatever happens (success,
failure, time limit, Ctrl-C) its processes are gone afterwards; a source that did not compile is kept.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from batchchol.artifacts.cache import ArtifactCache
from batchchol.artifacts.scratch import kill_processes, scratch_folder
from batchchol.errors import CacheError, CompileError, CompilerNotFound

TIME_LIMIT = 120.0
"""Seconds that one run of a compiler may take by default."""

_ANSWER_LINES = 100
_QUOTED_LINES = 12
# With less room a compiler can write neither its output nor a message.
_LEAST_FREE_BYTES = 1 << 20
_QUOTED_COLUMNS = 300


class Unusable(Exception):
    """Why one candidate is not a usable compiler, as the end of a sentence that begins with its name."""


class Stopped(Exception):
    """A compiler was not started, or did not finish, because `Running.stop` was called."""


class Running:
    """The compilers that run at this moment, so that another thread can end them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Register a process; one that is added after `stop` is killed."""
        with self._lock:
            self._processes.add(process)
            if self.stopped:
                _kill_group(process)

    def discard(self, process: subprocess.Popen[bytes]) -> None:
        """Unregister a process that has ended."""
        with self._lock:
            self._processes.discard(process)

    def stop(self) -> None:
        """Kill every process that runs now or is added later."""
        with self._lock:
            self.stopped = True
            for process in self._processes:
                _kill_group(process)


@dataclass(frozen=True)
class Compiler:
    """A usable compiler.

    Attributes
    ----------
    path : Path
        Its executable, absolute.
    version : str
        Such as ``"12.2.0"``.
    identity : str
        Its version, build, target, and fixed arguments and options: what belongs in a cache key.
    arguments : tuple of str
        Arguments that always come first, for a BATCHCHOL_CC such as ``ccache gcc``.
    """

    path: Path
    version: str
    identity: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The words that start it."""
        return (str(self.path), *self.arguments)


@dataclass(frozen=True)
class Compiled:
    """What a compiler wrote, the wall-clock seconds that it took, and what it said."""

    data: bytes
    seconds: float
    messages: str


@dataclass(frozen=True)
class Compilation:
    """One run of a compiler on one source.

    Attributes
    ----------
    compiler : str
        What messages call the compiler, such as ``"the C compiler"``.
    command : tuple of str
        Its words; the source is `file` in the folder where it runs.
    source : str
        One translation unit.
    file : str
        The name of its file.
    keep : bool
        Whether a source that does not compile is kept for reading.
    """

    compiler: str
    command: tuple[str, ...]
    source: str
    file: str
    keep: bool = True

    def make(
        self, output: str, fault: Callable[[bytes], str], time_limit: float, running: Running | None = None
    ) -> Compiled:
        """Compile in a folder of its own.

        Parameters
        ----------
        output : str
            The name of the file that the compiler writes there.
        fault : callable
            What is wrong with its bytes, such as ``"no whole cubin"``; empty if nothing is.

        Raises
        ------
        CompileError
            Status "timeout" at the time limit, "compile" for every other failure.
        Stopped
            If `running` was stopped meanwhile.
        """
        try:
            with scratch_folder() as folder:
                seconds = self.run(folder, time_limit, running)
                path = folder / output
                data = path.read_bytes() if path.is_file() else b""
                if wrong := fault(data):
                    reason = f"reported success but wrote {wrong} ({len(data)} bytes)"
                    raise self.error(folder, "compile", reason)
                return Compiled(data, seconds, messages_file(folder).read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise CompileError(
                "compile",
                f"cannot compile with {self.command[0]} ({error}): make room and give write permission in the "
                f"temporary folder {tempfile.gettempdir()} (TMPDIR chooses another)",
            ) from error

    def run(self, folder: Path, time_limit: float, running: Running | None = None) -> float:
        """Compile in an empty folder; return wall-clock seconds.

        Raises
        ------
        CompileError
            Status "timeout" at the time limit, "compile" for every other failure.
        Stopped
            If `running` was stopped meanwhile.
        OSError
            If the folder cannot be written or the compiler cannot be started.
        """
        (folder / self.file).write_text(self.source, encoding="utf-8")
        status, expired, seconds = run(self.command, folder, time_limit, running)
        if running is not None and running.stopped:
            raise Stopped
        if expired and status != 0:
            reason = f"was stopped at its time limit of {time_limit:g} s (unroll less, or allow more time)"
            raise self.error(folder, "timeout", reason)
        if status != 0:
            reason = f"failed with exit status {status}" if status > 0 else f"was killed by signal {-status}"
            raise self.error(folder, "compile", reason)
        return seconds

    def error(self, folder: Path, status: str, reason: str) -> CompileError:
        """The error with what the compiler said and where the source was kept."""
        words = first_lines(messages_file(folder), _QUOTED_LINES) or _no_room(folder)
        parts = [f"{self.compiler} {reason}: {shlex.join(self.command)}", words, self._keep() if self.keep else ""]
        return CompileError(status, "\n".join(part for part in parts if part))

    def _keep(self) -> str:
        """Keep the source, only once if it fails again, and say where."""
        try:
            return f"the source was kept in {ArtifactCache().keep_failed(self.source, Path(self.file).suffix)}"
        except CacheError as error:
            return f"the source could not be kept ({error})"


def _no_room(folder: Path) -> str:
    """That the disk is full, which a compiler then has no room to say; else empty."""
    free = shutil.disk_usage(folder).free
    if free >= _LEAST_FREE_BYTES:
        return ""
    return f"the temporary folder {tempfile.gettempdir()} has {free:,} bytes free: make room, or choose TMPDIR"


def run(
    command: Sequence[str], folder: Path, time_limit: float, running: Running | None = None
) -> tuple[int, bool, float]:
    """Run a command in a folder; return its exit status, whether the time limit stopped it, and seconds.

    Its messages go to a file, `messages_file`, and not a pipe: a pipe would stay open as long as any process it
    left behind.
    """
    # Its temporary files go where they are removed, and its messages are the ones this library reads.
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
    with open(messages_file(folder), "wb") as messages:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            process_group=0,
        )
        expired = _wait(process, time_limit, running or Running())
        return process.returncode, expired, time.perf_counter() - start


def probe(command: tuple[str, ...], time_limit: float) -> str:
    """The first lines that a program answers; it is asked once, and again after an upgrade.

    Raises
    ------
    Unusable
        If it cannot be started or gives no answer in time.
    """
    try:
        modified = os.stat(command[0]).st_mtime_ns
    except OSError as error:
        raise Unusable(f"cannot be started ({error})") from error
    return _answer(command, time_limit, modified)


@lru_cache(maxsize=32)
def _answer(command: tuple[str, ...], time_limit: float, modified: int) -> str:
    with scratch_folder() as folder:
        try:
            _, expired, _ = run(command, folder, time_limit)
        except OSError as error:
            raise Unusable(f"cannot be started ({error})") from error
        if expired:
            raise Unusable(f"did not tell its version within {time_limit:g} s")
        return first_lines(messages_file(folder), _ANSWER_LINES)


def first_usable(
    kind: str, candidates: Iterable[tuple[str, str]], identify: Callable[[Path, tuple[str, ...]], Compiler], hint: str
) -> Compiler:
    """The first compiler that can be used.

    Parameters
    ----------
    kind : str
        What messages call such a compiler, such as ``"C"``.
    candidates : iterable of (str, str)
        Where each command came from, and the command as for a shell.
    identify : callable
        A compiler of an executable and the arguments that always come first, or raises Unusable.
    hint : str
        How to get one.

    Raises
    ------
    CompilerNotFound
        If there is none; says what was wrong with those that were found.
    """
    reasons = []
    for origin, command in candidates:
        try:
            return identify(*_examine(command))
        except Unusable as error:
            reasons.append(f"{origin} {error}")
    raise CompilerNotFound(f"no usable {kind} compiler ({'; '.join(reasons)}): {hint}")


def _examine(command: str) -> tuple[Path, tuple[str, ...]]:
    """The executable of a command as a shell reads it, absolute, and the arguments."""
    try:
        program, *arguments = shlex.split(command)
    except ValueError as error:
        raise Unusable(f"cannot be read as a command ({error})") from error
    found = shutil.which(program)
    if found is None:
        raise Unusable("is not an executable" + ("" if os.sep in program else " on the PATH"))
    # The link itself, not what it points to: compiler wrappers look at the name they were started by.
    return Path(os.path.abspath(found)), tuple(arguments)


def messages_file(folder: Path) -> Path:
    """Where the messages of a command that ran in a folder are."""
    return folder / "messages"


def first_lines(path: Path, count: int) -> str:
    """The first lines of a text, each cut to a readable length."""
    with open(path, encoding="utf-8", errors="replace") as stream:
        return "\n".join(line.rstrip()[:_QUOTED_COLUMNS] for line in islice(stream, count))


def _wait(process: subprocess.Popen[bytes], time_limit: float, running: Running) -> bool:
    """Wait for a process group leader; kill its group at the time limit (then True) and on any exception."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _kill_group(process)

    # A timer, since Popen.wait(timeout) polls every 50 ms and compile seconds are a measured quantity.
    timer = threading.Timer(time_limit, expire)
    timer.daemon = True
    try:
        running.add(process)
        timer.start()
        process.wait()
    except BaseException:
        _kill_group(process)
        process.wait()
        raise
    finally:
        timer.cancel()
        running.discard(process)
    return expired.is_set()


def kill_session(leader: int) -> None:
    """Kill all processes of a session that this process began, after its leader: the compilers that it ran."""
    # What one of them began meanwhile is found by the next look. A dead process whose status was never read stays in
    # the list, so the number of looks is limited.
    for _ in range(3):
        kill_processes(lambda pid: pid not in (leader, os.getpid()) and os.getsid(pid) == leader)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # The group began with it, so that its number is its own and it holds no other processes.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
