"""The standard streams of a command: usable from its first line, and written whole before it ends."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

from batchchol.errors import BatchcholError

_STDERR = 2


def prepare() -> None:
    """Have descriptors 0 to 2 open, and streams that print any character, whatever the locale's encoding.

    Raises
    ------
    BatchcholError
        If standard output is closed: what a command prints would be lost.
    """
    _fill_gaps()
    if sys.stderr is None:
        # print(file=None) writes to standard output.
        sys.stderr = io.TextIOWrapper(io.FileIO(_STDERR, "w", closefd=False), encoding="utf-8", line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        raise BatchcholError("standard output is closed: open it, or discard what is printed with >/dev/null")


def flush() -> None:
    """Write what has been printed now: at exit, when Python would do it, no error can be handled.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def discard() -> None:
    """Flush what can be flushed; a stream that cannot be written discards the rest, also at exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def complain(message: str) -> None:
    """Print a line on standard error, if it can be written."""
    with suppress(OSError):
        print(f"batchchol: {message}", file=sys.stderr, flush=True)


def _fill_gaps() -> None:
    """Open the null device in place of closed descriptors, which files would get otherwise, and children write to."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
