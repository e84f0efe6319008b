"""Ctrl-C and other signals that end commands: real ones, sent when what hangs has said that it has begun."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import batchchol
from batchchol import cli, default_spec, get_backend
from batchchol.artifacts.compilers import Running
from batchchol.backends import cpu as cpu_backend
from batchchol.datasets.files import Slices
from batchchol.defaults.user import load
from batchchol.measure import dataset
from kernelgen import KernelSource

TESTS = Path(__file__).parents[2]


ROOT = Path(batchchol.__file__).parents[1]


SPACE = """
[[kernels]]
n = 20
nb = ["1-9"]
batch = 500
"""


# One that is asked its version answers; one that is to compile never ends.
HANGING_COMPILER = """#!/bin/sh
if test "$1" = -v; then
    echo "Target: x86_64-linux-gnu"
    echo "gcc version 13.1.0 (a fake)"
    exit
fi
echo $$ compiler > {log}
sleep 1000
"""


class Interrupted(NamedTuple):
    """How a command ended, and the processes that hung then."""

    status: int
    out: str
    err: str
    hung: list[int]


class Pipe:
    """A named pipe, in which what hangs says so in a line: the number of its process, and what it is."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Open for writing too: it does not end when the first who writes does.
        self._end = os.open(path, os.O_RDWR)

    def close(self) -> None:
        os.close(self._end)

    def wait(self, what: str) -> int:
        """The number of the next process that says that it is that."""
        while True:
            line = b""
            while not line.endswith(b"\n"):
                assert select.select([self._end], [], [], 100)[0], f"no {what}"
                line += os.read(self._end, 1)
            process, said = line.decode().split(maxsplit=1)
            if said.strip() == what:
                return int(process)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "pipe")
    yield made
    made.close()


class Command:
    """Starts a command in a folder, and interrupts it."""

    def __init__(self, folder: Path, pipe: Pipe) -> None:
        self.folder, self._pipe = folder, pipe
        compiler = folder / "hanging-gcc"
        compiler.write_text(HANGING_COMPILER.format(log=pipe.path))
        compiler.chmod(0o755)
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),
            "SWEEP_TEST_LOG": str(pipe.path),
            "BATCHCHOL_CACHE": str(folder / "cache"),
            "BATCHCHOL_TABLES": "user",
            "BATCHCHOL_THREADS": "2",
        }
        self._hanging = {"BATCHCHOL_CC": str(compiler)}

    def __call__(
        self, *command: object, bench: str, hangs: Sequence[str], signals: Sequence[int] = (signal.SIGINT,)
    ) -> Interrupted:
        """Send the signals when all that `hangs` names ("point", "compiler") hangs.

        If it names no compiler, no kernel is compiled.
        """
        compiled = "-" if "compiler" in hangs else "compiled"
        # What nohup starts, and all that this starts, ignores it.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        process = subprocess.Popen(
            [sys.executable, "-m", "interrupted", bench, compiled, *map(str, command)],
            env=self._environment | (self._hanging if compiled == "-" else {}),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        signal.signal(signal.SIGHUP, before)
        hung = [self._pipe.wait(what) for what in hangs]
        for number in signals:
            process.send_signal(number)
        out, err = process.communicate(timeout=100)
        return Interrupted(process.returncode, out, err, hung)


@pytest.fixture
def command(tmp_path: Path, pipe: Pipe) -> Command:
    (tmp_path / "space.toml").write_text(SPACE)
    return Command(tmp_path, pipe)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ended_in_order(done: Interrupted, how: str, status: int = 130) -> None:
    """With one line that says how to go on; none of its processes is left."""
    assert (done.status, "Traceback" in done.err) == (status, False), done.err
    assert [line for line in done.err.splitlines() if "interrupted" in line] == [f"batchchol: interrupted: {how}"]
    assert done.err.endswith(f"{how}\n")
    assert not [pid for pid in done.hung if is_running(pid)]


TRY_AGAIN = "the cases printed above are decided; run the command again for the others"


GO_ON = "compiled kernels and measured points are kept, the same command goes on from there"


@pytest.mark.parametrize("signals", [[2], [2, 2], [15], [1]], ids=["ctrl-c", "twice", "terminated", "hung up"])
def test_a_space_that_is_being_measured(command: Command, signals: Sequence[int]) -> None:
    """The third point hangs; those before it are kept."""
    done = command(
        *("tune", "--space", "space.toml", "--data", "data"), bench="Endless", hangs=["point"], signals=signals
    )
    ended_in_order(done, GO_ON, 128 + signals[0])
    assert len(dataset.read_rows(command.folder / "data")) == 2


def test_a_space_whose_kernels_are_being_compiled(command: Command) -> None:
    space = ("--space", "space.toml", "--data", "data", "--jobs", 2)
    done = command("tune", *space, bench="Quick", hangs=["compiler", "compiler"])
    ended_in_order(done, GO_ON)


def test_one_case_whose_process_compiles_what_it_measures_with(command: Command) -> None:
    """The process that measures is ended, and so is the compiler that it runs."""
    done = command("tune", "--n", 4, bench="SmallCache", hangs=["compiler"])
    ended_in_order(done, TRY_AGAIN)


def test_one_case_that_is_being_measured(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured decides, if the current kernel is among it."""
    case = ("--n", 20, "--layout", "chunked", "--batch", 500)
    done = command("tune", *case, bench="Endless", hangs=["point"])
    ended_in_order(done, TRY_AGAIN)
    assert ", interrupted\n" in done.out
    monkeypatch.setenv("BATCHCHOL_CACHE", str(command.folder / "cache"))
    monkeypatch.setenv("BATCHCHOL_TABLES", "user")
    assert len(load("a fake", "avx2", "avx2").entries) == 1


def test_a_comparison(command: Command) -> None:
    compare = ("compare", "--n", 2, "--batch", 900, "--peers", "numpy", "--out", "own.csv")
    done = command(*compare, bench="SmallCache", hangs=["compiler", "compiler"])
    ended_in_order(done, "finished points are kept in own.csv, the same command goes on from there")


IN_PROCESSES = """
import signal, sys
from batchchol.cli import interrupts
from batchchol.parallel import in_processes
from interrupted import begun
with interrupts.handled():
    try:
        list(in_processes(begun, None, [1, 2, 3], 2))
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_that_search(pipe: Pipe, number: int) -> None:
    """Those of a replay end at once, whatever they are at, and when their parent is killed."""
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]), "SWEEP_TEST_LOG": str(pipe.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", IN_PROCESSES], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    ends = [os.pidfd_open(pipe.wait("task")) for _ in range(2)]
    process.send_signal(number)
    assert process.communicate(timeout=100)[0] == ("interrupted\n" if number == signal.SIGINT else "")
    for end in ends:
        assert select.select([end], [], [], 100)[0], "it still runs"
        os.close(end)


ASV = """
import os, time
print("[50.00%] ··· something", flush=True)
try:
    with open(os.environ["SWEEP_TEST_LOG"], "a") as log:
        log.write(f"{os.getpid()} asv\\n")
    time.sleep(1000)
except KeyboardInterrupt:
    open("ended", "w").close()
"""


SUITE = """
import os, pathlib
from batchchol.cli import interrupts
from batchchol.asv_plugin import suite
here = pathlib.Path.cwd()
subject = suite.Subject(here, here / suite.CONFIG, "a commit", "the last commit")
with interrupts.handled():
    try:
        suite.run_suite(subject, "m", os.environ, here / "asv.log", print)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_the_suite(tmp_path: Path, pipe: Pipe) -> None:
    """asv gets the interrupt, in a session that the terminal's does not reach."""
    (tmp_path / "asv.py").write_text(ASV)
    process = subprocess.Popen(
        [sys.executable, "-c", SUITE],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SWEEP_TEST_LOG": str(pipe.path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    asv = pipe.wait("asv")
    assert os.getsid(asv) == asv
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=100)[0].splitlines()[-1] == "interrupted"
    assert (tmp_path / "ended").exists()
    assert not is_running(asv)


def test_a_data_set_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parts() -> Iterator[tuple[int, np.ndarray]]:
        yield 0, np.zeros((1, 2, 2), "float32")
        signal.raise_signal(signal.SIGINT)
        yield 1, np.zeros((1, 2, 2), "float32")

    monkeypatch.setattr("batchchol.cli.laboratory.dataset.stream", lambda *_, **__: Slices(2, 2, "float32", parts()))
    out = tmp_path / "a.npy"
    assert cli.main(["dataset", "generate", "wishart", "--n", "2", "--batch", "2", "--out", str(out)]) == 130
    how = f"{out} was not written, run the same command again"
    assert capsys.readouterr().err == f"batchchol: interrupted: {how}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_as_many_compilers_at_a_time_as_were_asked_for(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for as many as there may be at a time, and for no more."""
    slots, most = threading.Semaphore(jobs), threading.Barrier(jobs)
    given: list[float] = []

    def load(source: KernelSource, target: str, *, time_limit: float, running: Running) -> None:
        assert slots.acquire(blocking=False), "more than were asked for"
        given.append(time_limit)
        most.wait(60)
        slots.release()

    cpu = get_backend("cpu")
    monkeypatch.setattr(cpu_backend, "load", load)
    monkeypatch.setattr(cpu, "kernel", lambda spec: None)
    monkeypatch.setenv("BATCHCHOL_THREADS", "4")
    specs = [default_spec(n, target=cpu.target) for n in range(1, 9)]
    assert [each.status for each in cpu.build(specs, jobs=jobs, time_limit=7.0)] == ["built"] * 8
    assert given == [7.0] * 8
