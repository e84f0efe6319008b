"""Temporary folders of builds, and the removal of those whose process was killed.

A folder's process holds a lock on a file in it; the system takes the lock away when the process ends, however it
ends. A later build removes the folders that no process holds, and ends the compilers that still run in them.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from batchchol.artifacts.trusted import Untrusted, resolve_folder
from batchchol.errors import CacheError

PREFIX = "batchchol-build-"
_LOCK = "lock"
_STALE_SECONDS = 3600.0


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder for one build, removed afterwards, in the folder for temporary files.

    Raises
    ------
    CacheError
        If others could put other files in the place of what is built there.
    OSError
        If there is no room for it.
    """
    place = _place()
    _remove_abandoned(place)
    made = tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True)
    with made as name, _held(Path(name)):
        work = Path(name, "work")
        work.mkdir()
        yield work


def _place() -> Path:
    """The folder for temporary files."""
    folder = Path(tempfile.gettempdir())
    try:
        return resolve_folder(folder, shared=True)
    except Untrusted as error:
        raise CacheError(f"nothing is built in {folder}: {error}. Or set TMPDIR to a folder of your own") from error


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    # Not at the top: kernels in the cache are also found where there is no such module.
    import fcntl

    # Locked before it has its name: any process that finds it unlocked may remove the folder.
    descriptor = os.open(folder / "unlocked", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(folder / "unlocked", folder / _LOCK)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of this user's processes that were killed."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove_if_abandoned(Path(entry.path), entry.stat(follow_symlinks=False))


def _remove_if_abandoned(folder: Path, status: os.stat_result) -> None:
    import fcntl

    if status.st_uid != os.geteuid():
        return
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        # Its process may be about to lock it, unless it was killed just there.
        if status.st_mtime < time.time() - _STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        work = str(folder / "work")
        # The compilers of the process that was killed.
        kill_processes(lambda pid: os.readlink(f"/proc/{pid}/cwd") == work)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def kill_processes(chosen: Callable[[int], bool]) -> None:
    """Kill the processes that are chosen by their number; those that cannot be inspected are left alone."""
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with suppress(OSError):
            # The descriptor stays that of the process which was looked at.
            process = os.pidfd_open(pid)
            try:
                if chosen(pid):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)
