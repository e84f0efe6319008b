"""The process that runs kernels: `Measurer` gives it points and outlives it.

A kernel may write where it must not, never end, or take the driver down with it: that ends the process, costs the
point, and the next one has a new process. The process ends when its parent does, however that ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import IO, Any

from batchchol.artifacts.compilers import kill_session
from batchchol.errors import BatchcholError, DeviceLost
from batchchol.measure.bench import Settings
from batchchol.measure.energy import Energy
from batchchol.measure.point import Point
from batchchol.measure.row import Row, Value

BENCH = "batchchol.measure.bench:Bench"
"""What measures in the process: a module and a class of it."""

TIME_LIMITS: Mapping[str, float] = MappingProxyType({"cpu": 600.0, "cuda": 60.0})
"""Default seconds that a point may take: a CPU is slower."""

START_LIMIT = 300.0
# When this many points in a row end their process, the points are not to blame.
MOST_LOSSES = 25
_GRACE_SECONDS = 30.0
_QUOTED_CHARACTERS = 500


class MachineFailure(BatchcholError):
    """No point can be measured here any more; what was measured so far is kept."""


class Measurer(AbstractContextManager["Measurer"]):
    """Measures points in a process of its own, one at a time.

    Parameters
    ----------
    backend : str
        "cpu" or "cuda".
    settings : Settings
        How points are measured.
    time_limit : float, optional
        Seconds that a point may take, its data and the loading of its kernel included; by default `TIME_LIMITS`.
    environment : mapping, optional
        Variables of the process besides this one's, such as CUDA_VISIBLE_DEVICES.
    bench : str
        What measures there, "module:class"; by default `BENCH`.

    Raises
    ------
    BatchcholError
        From every method, if the process cannot be started, such as for want of a GPU; says why.
    """

    def __init__(
        self,
        backend: str = "cpu",
        *,
        settings: Settings | None = None,
        time_limit: float | None = None,
        environment: Mapping[str, str] | None = None,
        bench: str | None = None,
    ) -> None:
        self._start = (bench or BENCH, backend, settings or Settings())
        self._time_limit = time_limit or TIME_LIMITS[backend]
        self._environment = dict(environment or {})
        self._process: _Process | None = None
        self._pending: Point | None = None
        self._facts: dict[str, Any] = {}
        self._about: dict[str, Value] = {}
        self._ceilings: dict[tuple[str, int], dict[str, Value]] = {}
        self._losses = 0

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> str:
        """End the process; return, as the end of a sentence, how it had ended if it had by itself.

        A point that was submitted is not measured.
        """
        self._pending = None
        process, self._process = self._process, None
        return "was ended" if process is None else process.end()

    def facts(self) -> dict[str, Any]:
        """What a search space must know about the device, found by the first process and kept; see `Bench.facts`."""
        if not self._facts:
            self._facts = dict(self._ask("facts"))
        return dict(self._facts)

    def about(self, dtype: str = "float32", threads: int = 1) -> dict[str, Value]:
        """The columns of the machine, its software and its ceilings, found by the first process and kept."""
        if not self._about:
            self._about = dict(self._ask("about"))
        if (dtype, threads) not in self._ceilings:
            self._ceilings[dtype, threads] = dict(self._ask("ceilings", dtype, threads))
        return self._about | self._ceilings[dtype, threads]

    def measure(self, point: Point, samples: int | None = None) -> Row:
        """One point, with `samples` samples or the settings' number: what happens to it becomes its row's status."""
        self.submit(point, samples)
        return self.result()

    def energy(self, point: Point, seconds: float) -> Energy | None:
        """The energy of a call of a point, repeated for that long; None if that fails. See `Bench.energy`."""
        energy: Energy | None = self._ask("energy", point, seconds)
        return energy

    def submit(self, point: Point, samples: int | None = None) -> None:
        """Begin to measure a point; `result` waits for it."""
        if self._process is not None and self._process.ended:
            # Between points, so that none of them is to blame.
            self.close()
        self.about(point.spec.problem.dtype, point.threads)
        process = self._running()
        self._pending = point
        with self._whole():
            process.send(("measure", point, samples))

    def result(self) -> Row:
        """The row of the point that was submitted last.

        Raises
        ------
        MachineFailure
            If `MOST_LOSSES` points in a row were lost: the points are not to blame.
        """
        point, process = self._pending, self._process
        if point is None or process is None:
            raise ValueError("result: nothing was submitted")
        row = self._received(process, point)
        about = self._about | self._ceilings[point.spec.problem.dtype, point.threads] | dict(row.about)
        return replace(row, about=about)

    def _received(self, process: _Process, point: Point) -> Row:
        try:
            with self._whole():
                kind, value = process.receive(self._time_limit)
        except TimeoutError:
            self.close()
            return self._lost(point, "timeout", f"not done after {self._time_limit:g} s: its process was ended")
        except EOFError:
            return self._lost(point, "runtime", f"the process that ran it {self.close()}")
        self._pending = None
        if kind == "stop":
            raise MachineFailure(value)
        if kind == "lost":
            self.close()
            return self._lost(point, "runtime", value)
        self._losses = 0
        row: Row = value
        return row

    def _lost(self, point: Point, status: str, message: str) -> Row:
        self._losses += 1
        if self._losses >= MOST_LOSSES:
            raise MachineFailure(f"{self._losses} points in a row ended their process, the last: {message}")
        return Row(point, status, message)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """End the process if an exchange is interrupted: its next answer would be to the last question."""
        try:
            yield
        except (TimeoutError, EOFError):
            raise
        except BaseException:
            self.close()
            raise

    def _ask(self, question: str, *arguments: Any) -> Any:
        if self._pending is not None:
            # The next answer would be the row of that point, and its time is not waited for.
            self.close()
        process = self._running()
        try:
            with self._whole():
                process.send((question, *arguments))
                kind, value = process.receive(START_LIMIT)
        except (TimeoutError, EOFError) as error:
            late = f"gave no answer in {START_LIMIT:g} s and " if isinstance(error, TimeoutError) else ""
            raise MachineFailure(f"the process that measures {late}{self.close()}") from error
        if kind != "done":
            self.close()
            raise MachineFailure(value)
        return value

    def _running(self) -> _Process:
        if self._process is None:
            self._process = _Process(self._environment)
            self._ask("start", *self._start)
        return self._process


class _Process:
    """A worker and the pipes to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        requests, answers, life = os.pipe(), os.pipe(), os.pipe()
        theirs = (requests[0], answers[1], life[0])
        # What it writes goes to a file: a pipe that is not read would block it.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        folder = str(Path(__file__).resolve().parents[2])
        variables = {**os.environ, **environment}
        path = os.pathsep.join(filter(None, (folder, variables.get("PYTHONPATH"))))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "batchchol.measure.process", *map(str, theirs)],
                env=variables | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=theirs,
                # Ctrl-C is for the parent.
                start_new_session=True,
            )
        finally:
            for end in theirs:
                os.close(end)
        self._life = life[1]
        self._requests = Connection(requests[1], readable=False)
        self._answers = Connection(answers[0], writable=False)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def send(self, message: tuple[Any, ...]) -> None:
        """Give it something to do; whether it has died shows when the answer is read."""
        with suppress(BrokenPipeError):
            self._requests.send(message)

    def receive(self, limit: float) -> tuple[str, Any]:
        """Wait for an answer.

        Raises
        ------
        TimeoutError
            If there is none in that many seconds.
        EOFError
            If it has died.
        """
        if not self._answers.poll(limit):
            raise TimeoutError
        try:
            kind, value = self._answers.recv()
        except OSError as error:
            raise EOFError from error
        return kind, value

    def end(self) -> str:
        """End it; how it ended, if it had by itself, as the end of a sentence."""
        with suppress(subprocess.TimeoutExpired):
            # A process that closed its end of the pipe is about to end.
            self._process.wait(1.0 if self._answers.closed or _at_end(self._answers) else 0.0)
        status = self._process.poll()
        reason = "was ended" if status is None else how_it_ended(status, self._log)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            # A process whose kernel hangs is gone when the driver has torn that down.
            self._process.wait(_GRACE_SECONDS)
        kill_session(self._process.pid)
        for connection in (self._requests, self._answers):
            connection.close()
        os.close(self._life)
        self._log.close()
        return reason


def how_it_ended(status: int, log: IO[bytes]) -> str:
    """The end of a sentence about a process, by its exit status (of `subprocess`) and the last words of its log."""
    how = f"ended with exit status {status}" if status >= 0 else f"was killed by {_signal_name(-status)}"
    log.seek(0)
    words = " ".join(log.read().decode(errors="replace").split())[-_QUOTED_CHARACTERS:]
    return f"{how}: {words}" if words else how


def _at_end(connection: Connection) -> bool:
    try:
        return connection.poll(0)
    except OSError:
        return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(arguments: list[str]) -> int:
    """The worker: answer what comes through the pipes whose numbers are given, until they end."""
    requests, answers, life = map(int, arguments)
    threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()
    incoming, outgoing = Connection(requests, writable=False), Connection(answers, readable=False)
    bench: Any = None
    while True:
        try:
            question, *details = incoming.recv()
        except EOFError:
            return 0
        try:
            if question == "start":
                name, *arguments = details
                bench, value = resolve_name(name)(*arguments), None
            else:
                value = getattr(bench, question)(*details)
            outgoing.send(("done", value))
        except DeviceLost as error:
            # Nothing works here any more, not even an orderly end.
            outgoing.send(("lost", str(error)))
            os._exit(1)
        except BatchcholError as error:
            outgoing.send(("stop", str(error)))


def _end_with_parent(life: int) -> None:
    """Nothing is ever written to this pipe: reading ends once no process holds the other end."""
    os.read(life, 1)
    kill_session(os.getpid())
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
