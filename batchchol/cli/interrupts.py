"""Ctrl-C, and the signals that ask a command to end: the first one ends it in order, with one line that says more."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""From the keyboard, from a batch system, and from a terminal that was closed."""

# For this long after the first signal those that follow do nothing, so that an impatient second Ctrl-C does not hit
# the clean-up. After that they count again: a clean-up that hangs can be ended.
_CLEAN_UP_SECONDS = 5.0
# How long a signal may go without its handler before it is sent again, and how long a call of the handler is recent.
_NUDGE_SECONDS = 0.05
_RECENT_SECONDS = 1.0
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
    try:
        for number, previous in before.items():
            if previous is not signal.SIG_IGN:
                signal.signal(number, handler)
        with _not_lost(handler):
            yield
    finally:
        handler.rest()
        for number, previous in before.items():
            # None is a handler that was not set from Python: it cannot be set again.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


@contextmanager
def advice(how: str) -> Iterator[None]:
    """Make an interrupt inside say how to go on, such as "the same command goes on from there"."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(how)
        raise


def message(interrupt: KeyboardInterrupt) -> str:
    """What to print when a command was interrupted: how to go on."""
    return f"interrupted: {'; '.join(getattr(interrupt, '__notes__', [])) or _AGAIN}"


def forget_frames(interrupt: BaseException) -> None:
    """Let go of what the interrupted functions held, innermost first.

    Where a frame is part of a cycle it would be left to the collector at the end of the process, which frees what is
    exported before its exports, and says so on standard error (a pipe's message, from Python 3.13 on).
    """
    error: BaseException | None = interrupt
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def status(interrupt: KeyboardInterrupt) -> int:
    """The exit status of an interrupted command, as shells have it: 130 for Ctrl-C."""
    return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


class _Handler:
    """Raises on a signal, but not on those that come right after one."""

    called: float
    """When it was called last, by the monotonic clock."""
    _raised: float

    def __init__(self) -> None:
        self.forget()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.called = now = time.monotonic()
        if now - self._raised >= _CLEAN_UP_SECONDS:
            self._raised = now
            raise KeyboardInterrupt(int(number))

    def rest(self) -> None:
        """Raise no more."""
        self._raised = math.inf

    def forget(self) -> None:
        """As if there had been no signal."""
        self.called = self._raised = -max(_CLEAN_UP_SECONDS, _RECENT_SECONDS)


@contextmanager
def _not_lost(handler: _Handler) -> Iterator[None]:
    """Send a signal again until its handler was called, and until what that raised was not swallowed.

    A signal between Python's last look for one and a wait of the main thread wakes no one: the handler would be
    called when the wait ends. What a handler raises in a destructor or in the callback of a weak reference is
    reported, and goes no further.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    nudging = _Nudging(handler, reading)
    before, reported = signal.set_wakeup_fd(writing, warn_on_full_buffer=False), sys.unraisablehook

    def report(unraisable: UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt) and unraisable.exc_value.args:
            handler.forget()
            os.write(writing, bytes(unraisable.exc_value.args))
        else:
            reported(unraisable)

    sys.unraisablehook = report
    try:
        # Without memory for a thread's stack it behaves as Python does.
        with suppress(RuntimeError):
            nudging.start()
        yield
    finally:
        handler.rest()
        sys.unraisablehook = reported
        signal.set_wakeup_fd(before)
        nudging.stop()
        os.close(writing)
        if nudging.ident is not None:
            nudging.join()
        os.close(reading)


class _Nudging(threading.Thread):
    """Reads the numbers of signals from a pipe, until it is closed, and sees that the main thread handles them."""

    def __init__(self, handler: _Handler, pipe: int) -> None:
        super().__init__(name="batchchol-signals", daemon=True)
        self._handler, self._pipe = handler, pipe
        self._sending, self._stopped = threading.Lock(), False

    def run(self) -> None:
        # All that came meanwhile at once: what is sent again comes here too.
        while numbers := os.read(self._pipe, 1 << 16):
            time.sleep(_NUDGE_SECONDS)
            for number in set(numbers).intersection(SIGNALS):
                while self._send(number):
                    time.sleep(_NUDGE_SECONDS)

    def _send(self, number: int) -> bool:
        """Whether the handler had not been called, and the signal was sent to the main thread again."""
        with self._sending:
            recent = time.monotonic() - self._handler.called <= _RECENT_SECONDS
            # Another handler may have taken its place.
            unheard = not self._stopped and not recent and signal.getsignal(number) is self._handler
            if unheard:
                signal.pthread_kill(threading.main_thread().ident or 0, number)
        return unheard

    def stop(self) -> None:
        """Send nothing from now on: what handles the signals then may end the process."""
        with self._sending:
            self._stopped = True
