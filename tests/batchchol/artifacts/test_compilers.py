"""Compilers that another thread ends: those that run, and those that come too late."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from batchchol.artifacts.compilers import Compilation, Running, Stopped

SLEEPER = Compilation("sh", ("/bin/sh", "kernel.sh"), "echo $$ > pid\nsleep 1000", "kernel.sh")


def test_running_compilers_are_stopped(tmp_path: Path) -> None:
    running = Running()
    raised: list[BaseException] = []

    def compile_it() -> None:
        try:
            SLEEPER.run(tmp_path, 500.0, running)
        except Stopped as error:
            raised.append(error)

    thread = threading.Thread(target=compile_it)
    thread.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    running.stop()
    thread.join(60)
    assert len(raised) == 1
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_compiler_that_comes_too_late_is_stopped(tmp_path: Path) -> None:
    running = Running()
    running.stop()
    with pytest.raises(Stopped):
        SLEEPER.run(tmp_path, 500.0, running)


def test_others_are_not_stopped(tmp_path: Path) -> None:
    Running().stop()
    quick = Compilation("sh", ("/bin/sh", "kernel.sh"), "exit 0", "kernel.sh")
    assert quick.run(tmp_path, 60.0, Running()) > 0
