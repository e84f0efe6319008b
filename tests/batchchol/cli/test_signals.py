"""The handlers of signals that end commands: they raise once, lose nothing, and are gone afterwards."""

from __future__ import annotations

import gc
import signal
import subprocess
import textwrap
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from batchchol import cli
from batchchol.cli import interrupts

# As if the signal came between Python's last look for one and the wait: another thread gets it.
WAITS = """
threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()
threading.Event().wait(1000)
"""


SWALLOWS = """
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

Dying()
threading.Event().wait(1000)
"""


LOST = """
import os, signal, threading
from batchchol.cli import interrupts
try:
    with interrupts.handled():
        {does}
except KeyboardInterrupt as error:
    print("interrupted", interrupts.status(error))
"""


@pytest.mark.parametrize("does", [WAITS, SWALLOWS], ids=["wakes nobody", "swallowed"])
def test_no_signal_is_lost(does: str, run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python("-c", LOST.format(does=textwrap.indent(does, 8 * " ").strip()))
    assert (done.stdout, done.stderr) == ("interrupted 130\n", "")


REPLACED = """
import signal, time
from batchchol.cli import interrupts
calls = []
with interrupts.handled():
    signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.5)
print(len(calls), signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.set_wakeup_fd(-1))
"""


def test_a_signal_is_sent_again_for_our_own_handler_alone(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python("-c", REPLACED)
    assert (done.stdout, done.stderr) == ("1 True -1\n", "")


NO_THREAD = """
import signal, threading
from batchchol.cli import interrupts
threading.Thread.start = lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread"))
try:
    with interrupts.handled():
        signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_without_a_thread_signals_are_handled_as_python_does(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python("-c", NO_THREAD)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_nothing_that_an_interrupted_command_held_is_left_to_the_collector(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cycle of an exception and the frame that it came from, as `asyncio` and pools of processes make them."""
    held = []

    def run(_: object) -> int:
        array, cycle = np.zeros(3), list[BaseException]()
        held.append(weakref.ref(array))
        try:
            raise KeyboardInterrupt(int(signal.SIGINT))
        except KeyboardInterrupt as error:
            cycle.append(error)
            raise

    monkeypatch.setattr("batchchol.cli.library.info.run", run)
    gc.disable()
    try:
        assert cli.main(["info"]) == 130
        assert held[0]() is None
    finally:
        gc.enable()
    assert "interrupted" in capsys.readouterr().err


def test_handlers_raise_once_and_are_gone_afterwards() -> None:
    before = [signal.getsignal(number) for number in interrupts.SIGNALS]

    @interrupts.handled()
    def command() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            for number in interrupts.SIGNALS:
                signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt) as caught:
        command()
    assert interrupts.status(caught.value) == 128 + signal.SIGTERM
    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == before


def test_a_clean_up_that_hangs_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    with interrupts.handled():
        for seconds in (0.0, 60.0):
            now[0] += seconds
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.handled():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_messages_say_how_to_go_on() -> None:
    assert interrupts.message(KeyboardInterrupt()) == "interrupted: run the same command again"
    assert interrupts.status(KeyboardInterrupt()) == 130
    with pytest.raises(KeyboardInterrupt) as caught, interrupts.advice("go on there"):
        raise KeyboardInterrupt
    assert interrupts.message(caught.value) == "interrupted: go on there"
