"""Ctrl-C, and the signals that ask a command to end: the first one ends it in order, with one line that says more."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""From the keyboard, from a batch system, and from a terminal that was closed."""

# For this long after the first signal those that follow do nothing, so that an impatient second Ctrl-C does not hit
# the clean-up. After that they count again: a clean-up that hangs can be ended.
_CLEAN_UP_SECONDS = 5.0
_AGAIN = "run the same command again"


@contextmanager
def handled() -> Iterator[None]:
    """Have every one of `SIGNALS` raise a KeyboardInterrupt that carries its number; see `status`.

    What was set to be ignored, as by nohup, stays so. Only the main thread can handle signals: in another one this
    does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, previous in before.items():
        if previous is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            # None is a handler that was not set from Python: it cannot be set again.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


@contextmanager
def advice(how: str) -> Iterator[None]:
    """Have an interrupt of what is done inside say how to go on, such as "the same command goes on from there"."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(how)
        raise


def message(interrupt: KeyboardInterrupt) -> str:
    """What to print when a command was interrupted: how to go on."""
    return f"interrupted: {'; '.join(getattr(interrupt, '__notes__', [])) or _AGAIN}"


def status(interrupt: KeyboardInterrupt) -> int:
    """The exit status of an interrupted command, as shells have it: 130 for Ctrl-C."""
    return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


class _Handler:
    """Raises on a signal, but not on those that come right after one."""

    def __init__(self) -> None:
        self._last = -_CLEAN_UP_SECONDS

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last >= _CLEAN_UP_SECONDS:
            self._last = now
            raise KeyboardInterrupt(int(number))
