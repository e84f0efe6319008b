"""Processes of a gate: every way to end says why, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import batchchol
from batchchol.asv_plugin.gate import lines
from batchchol.asv_plugin.gate.sides import Ahead
from batchchol.asv_plugin.gate.worker import Lost, Refused, Steady, Worker

Start = Callable[[], Worker]

SCRIPT = """
import os, subprocess, sys, time

print("noise of an import")


class Odd:
    def __init__(self, fails=False):
        if fails:
            raise ImportError("no such package")

    def twice(self, number):
        print("noise of a call")
        os.system("echo noise of a child")
        sys.stdout.write("noise without an end")
        return 2 * number

    def read(self):
        return sys.stdin.read() + subprocess.run("cat", stdout=subprocess.PIPE, text=True).stdout

    def fail(self):
        raise ValueError("got 3, expected 4")

    def hang(self):
        time.sleep(600)

    def leave(self, status):
        print("the last words", file=sys.stderr)
        os._exit(status)

    def stop(self):
        sys.exit("not today")

    def crash(self, signal):
        os.kill(os.getpid(), signal)

    def children(self):
        own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return [os.getpid(), own.pid, subprocess.Popen(["sleep", "600"], process_group=0).pid]
"""


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """start(): a process that serves `Odd`."""
    (tmp_path / "odd.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(tmp_path), str(Path(batchchol.__file__).parents[1]))),
    }

    def make() -> Worker:
        return Worker([sys.executable, "-P", lines.__file__, "odd:Odd"], tmp_path, environment)

    return make


@pytest.fixture
def odd(start: Start) -> Worker:
    """A process that has begun."""
    worker = start()
    assert worker.ask("start") is None
    return worker


def gone(pid: int) -> bool:
    """Whether a process has ended; that of a dead parent may wait a moment for somebody to take note."""
    for _ in range(100):
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if status.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def test_what_code_prints_or_reads_is_no_part_of_the_talk(odd: Worker) -> None:
    with odd:
        assert odd.ask("twice", number=4) == 8
        assert odd.ask("read") == ""
        assert odd.ask("twice", number=5) == 10


def test_an_error_is_an_answer_and_the_process_lives_on(odd: Worker) -> None:
    with odd:
        with pytest.raises(Refused, match=r"^ValueError: got 3, expected 4$"):
            odd.ask("fail")
        with pytest.raises(Refused, match="unexpected keyword"):
            odd.ask("twice", letters="a")
        assert odd.ask("twice", number=1) == 2


def test_what_cannot_begin_says_why(start: Start) -> None:
    with start() as worker, pytest.raises(Refused, match=r"^ImportError: no such package$"):
        worker.ask("start", fails=True)


@pytest.mark.parametrize(
    ("do", "arguments", "why"),
    [
        ("leave", {"status": 7}, "the process ended with exit status 7: .*the last words"),
        ("stop", {}, "the process ended with exit status 1: .*not today"),
        ("crash", {"signal": 11}, "the process was killed by SIGSEGV"),
        ("crash", {"signal": 9}, "the process was killed by SIGKILL"),
        ("hang", {}, r"no answer within 0\.3 s: the process was ended"),
    ],
)
def test_a_process_that_is_lost_says_why(odd: Worker, do: str, arguments: dict[str, int], why: str) -> None:
    process = odd._process
    with pytest.raises(Lost, match=why):
        odd.ask(do, 0.3 if do == "hang" else 20.0, **arguments)
    assert process.poll() is not None
    assert odd._log.closed


def test_nothing_is_left_after_the_end(odd: Worker) -> None:
    processes = odd.ask("children")
    assert not any(os.waitpid(pid, os.WNOHANG)[0] for pid in processes[:1])
    odd.close()
    odd.close()
    assert all(map(gone, processes))


def test_an_interrupt_ends_the_process(odd: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Worker, limit: float) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "_line", interrupted)
    with pytest.raises(KeyboardInterrupt):
        odd.ask("twice", number=1)
    assert odd._process.poll() is not None


def test_a_process_ends_with_the_one_that_asked(odd: Worker) -> None:
    # As when the gate is killed.
    assert odd._process.stdin is not None
    odd._process.stdin.close()
    assert odd._process.wait(10) == 0
    odd.close()


def test_a_steady_process_is_begun_anew(start: Start) -> None:
    def begun() -> Worker:
        worker = start()
        worker.ask("start")
        return worker

    with Steady(begun) as steady:
        first = steady.ask("children")
        with pytest.raises(Lost, match="SIGABRT"):
            steady.ask("crash", signal=6)
        assert steady.ask("twice", number=3) == 6
        second = steady.ask("children")
    assert all(map(gone, [*first, *second]))


@pytest.mark.parametrize("ahead", [1, 4])
def test_processes_are_begun_ahead_and_none_is_left(ahead: int) -> None:
    begun: list[FakeWorker] = []

    def make() -> FakeWorker:
        begun.append(FakeWorker())
        return begun[-1]

    with Ahead(make, ahead) as following:  # type: ignore[arg-type]
        used = [following() for _ in range(3)]
    assert len(begun) == 3 + ahead
    assert [worker.closed for worker in begun if worker in used] == [False] * 3
    assert [worker.closed for worker in begun if worker not in used] == [True] * ahead


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Lost("it ended")])
def test_a_process_that_cannot_begin_ahead_is_told_of_when_it_is_needed(error: Exception) -> None:
    def make() -> Worker:
        raise error

    with Ahead(make):
        # Nobody needed it.
        pass
    with pytest.raises(type(error)), Ahead(make) as following:
        following()


class FakeWorker:
    """No process."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True
