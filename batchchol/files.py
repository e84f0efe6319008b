"""Files that a user names: reading never blocks, and writing replaces a file whole.

Readers see the old bytes or all of the new ones, and nothing but a regular file is ever replaced.

A symbolic link stays, and the file that it points to is replaced. Devices, pipes and the streams of this process
(``/dev/stdout``, ``/dev/fd/3``) are written to as they are. Folders, sockets and disks are refused.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from batchchol.errors import DataFileError

TEMPORARY_PREFIX = ".partial-"

_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")


def replace_file(path: Path | str, data: bytes) -> None:
    """Write a file in one step; see :func:`replacing`."""
    with replacing(path) as stream:
        stream.write(data)


@contextmanager
def replacing(path: Path | str) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file `path` when all went well; else `path` stays as it was.

    A file that is replaced hands on its mode; a new one has that of the umask. Its folder must exist
    (:func:`make_folder`). The bytes are on the disk before they take its place, so that a power cut loses nothing.

    Raises
    ------
    DataFileError
        If it cannot be written, or is something that must not be replaced.
    """
    path = Path(path)
    try:
        if _is_stream(path):
            with _open_stream(path) as stream:
                yield stream
        else:
            target = _target(path)
            with _replacement(target, 0o666) as stream:
                if target.exists():
                    os.fchmod(stream.fileno(), stat.S_IMODE(target.stat().st_mode) & 0o777)
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
    except BrokenPipeError:
        # The reader of a stream has stopped reading: the file is not to blame.
        raise
    except OSError as error:
        raise _unwritable(path, error) from error


def replace_entry(path: Path, data: bytes, mode: int) -> None:
    """Make a name in a folder of the library's own stand for these bytes, in place of anything, links and pipes too.

    Not flushed to the disk: for what can be made again. The umask takes permissions from `mode`.

    Raises
    ------
    OSError
        As the system reports it; what was there still is.
    """
    with _replacement(path, mode) as stream:
        stream.write(data)


def append_whole(path: Path, data: bytes) -> None:
    """Add bytes to the end of a file, all or none: what a full disk cuts off is taken back.

    Raises
    ------
    OSError
        As the system reports it.
    """
    with path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            while data:
                data = data[file.write(data) :]
        except BaseException:
            with suppress(OSError):
                file.truncate(size)
            raise


def check_writable(path: Path | str) -> None:
    """Refuse a path that :func:`replace_file` could not write, before the work whose result goes there.

    A file is created in its folder and removed again: only that tells of read-only and full file systems.

    Raises
    ------
    DataFileError
        If it cannot be written, or is something that must not be replaced.
    """
    path = Path(path)
    try:
        if _is_stream(path):
            _check_stream(path)
            return
        target = _target(path)
        _check_sticky(target)
        _try_to_make(_temporary(target))
    except OSError as error:
        raise _unwritable(path, error) from error


def make_folder(path: Path | str) -> None:
    """Make a folder for results, and those above it.

    Raises
    ------
    DataFileError
        If it cannot be made, or there is a file of its name.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise DataFileError(path, "folder", "there is a file of this name: choose another folder") from error
    except OSError as error:
        raise DataFileError(path, "folder", f"cannot be made: {error.strerror or error}") from error


def check_made(path: Path | str) -> None:
    """As :func:`check_writable`, for a file whose folder is made where it is missing.

    Raises
    ------
    DataFileError
        If it cannot be written, or its folder cannot be made.
    """
    path = Path(path)
    check_folder(path.parent)
    if path.parent.is_dir():
        check_writable(path)


def beside(source: Path, what: str) -> Path:
    """The folder for results of a data set: beside it, with its name, such as "sweep-report" of "sweep.parquet".

    Raises
    ------
    DataFileError
        If the data set is a folder without a name.
    """
    source = source.resolve()
    if not source.name:
        raise DataFileError(source, "reading", "has no name that results could be named after: choose --out")
    return source.with_name(f"{source.name.removesuffix('.parquet')}-{what}")


def check_folder(path: Path | str) -> None:
    """Refuse a folder in which no file could be written, before the work whose results go there; it is not made.

    Raises
    ------
    DataFileError
        If it cannot be made or written to, or there is a file of its name.
    """
    path = Path(path)
    try:
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        if not there.is_dir():
            raise DataFileError(path, "folder", f"there is a file of the name {there}: choose another folder")
        _try_to_make(_temporary(there / "folder"))
    except OSError as error:
        raise DataFileError(path, "folder", f"cannot be made: {error.strerror or error}") from error


def _try_to_make(temporary: Path) -> None:
    try:
        temporary.open("xb").close()
    finally:
        temporary.unlink(missing_ok=True)


def _is_stream(path: Path) -> bool:
    """Whether what is at a path is written to as it is: a device, a pipe, a stream of this process."""
    if _descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _descriptor(path: Path) -> int | None:
    """The descriptor that a path names, whatever it is open on: a file that a shell appends to is not replaced."""
    found = _DESCRIPTOR.fullmatch(str(path))
    return int(found[1]) if found else _STREAMS.get(str(path))


def _open_stream(path: Path) -> BinaryIO:
    descriptor = _descriptor(path)
    if descriptor is None:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY), "wb")
    # What was printed so far comes first.
    sys.stdout.flush()
    return os.fdopen(os.dup(descriptor), "wb")


def _check_stream(path: Path) -> None:
    import fcntl

    descriptor = _descriptor(path)
    if descriptor is None:
        writable = os.access(path, os.W_OK)
    else:
        writable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    if not writable:
        raise PermissionError(13, "Permission denied")


def _target(path: Path) -> Path:
    """The regular file to replace, links followed; it need not exist yet."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if path.is_symlink():
            pointed = os.readlink(path)
            reason = f"is a symbolic link to {pointed}, which is not there: remove it, or name another file"
            raise DataFileError(path, "writing", reason) from None
        return path
    if stat.S_ISDIR(mode):
        raise DataFileError(path, "writing", "is a folder, expected a file")
    if not stat.S_ISREG(mode):
        raise DataFileError(path, "writing", "is neither a file, a pipe nor a character device: name another file")
    if not os.access(path, os.W_OK):
        raise DataFileError(path, "writing", "is write-protected: allow it (chmod u+w), or name another file")
    return path.resolve()


@contextmanager
def _replacement(target: Path, mode: int) -> Iterator[BinaryIO]:
    temporary = _temporary(target)
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            yield stream
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(target: Path) -> Path:
    return target.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")


def _check_sticky(target: Path) -> None:
    """In a folder such as /tmp, only its owner and a file's may replace the file."""
    folder = target.parent.stat()
    owners = {0, folder.st_uid, target.stat().st_uid} if target.exists() else {os.geteuid()}
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in owners:
        raise PermissionError(1, "Operation not permitted")


def _unwritable(path: Path, error: OSError) -> DataFileError:
    if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
        return DataFileError(path, "writing", f"there is no folder {path.parent}: make it, or name another file")
    return DataFileError(path, "writing", error.strerror or str(error))


def for_reading(path: str, flags: int) -> int:
    """An opener for `open`: a pipe without a writer is empty, and devices are refused.

    Raises
    ------
    OSError
        As the system reports it; for a device too.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "a device, expected a file", path)
        # From here on, reading waits for the writer of a pipe.
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def system_values(path: Path, separator: str | None = ":") -> dict[str, str]:
    """What a file such as /proc/meminfo says, by name, the first of each name; empty if it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(separator, 1) for line in reversed(lines))
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}


def read_file(path: Path | str) -> bytes:
    """All bytes of a file or pipe.

    Raises
    ------
    OSError
        As the system reports it, and for a device.
    """
    with open(path, "rb", opener=for_reading) as stream:
        return stream.read()
