"""Opening files that a user names: nothing that is opened is waited for, and none of them is without an end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def for_reading(path: str, flags: int) -> int:
    """An opener for `open`: a pipe into which nobody writes is empty, and devices are refused.

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
        # Who does write into a pipe is waited for.
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path | str) -> bytes:
    """All bytes of a file or pipe.

    Raises
    ------
    OSError
        As the system reports it, and for a device.
    """
    with open(path, "rb", opener=for_reading) as stream:
        return stream.read()
