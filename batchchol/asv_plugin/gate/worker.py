"""Processes that answer one line with another: a commit's side, or the one that runs both commits' kernels."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from batchchol.artifacts.compilers import kill_session
from batchchol.errors import BatchcholError
from batchchol.measure.process import how_it_ended

_GRACE_SECONDS = 5.0


class Lost(BatchcholError):
    """A process that ended, or gave no answer in time; it is gone."""


class Refused(BatchcholError):
    """What a process answered in place of a value: it lives on."""


class Worker:
    """A process that answers requests, one at a time.

    Parameters
    ----------
    command : sequence of str
        What is run: it reads JSON objects, a line each, and answers each with {"value": ...} or {"error": text}.
    folder : Path
        Where it runs.
    environment : mapping
        Its variables.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Ctrl-C is for the parent, which ends it.
            start_new_session=True,
        )
        self._rest = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, do: str, limit: float = 600.0, **arguments: Any) -> Any:
        """The answer to a request, within `limit` seconds.

        Raises
        ------
        Lost
            If the process ended, or gave none: it is ended then.
        Refused
            If the answer says why there is none.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        try:
            answer = json.loads(self._line(limit))
        except BaseException:
            # What interrupts an exchange ends the process: its next answer would be to this question.
            self.close()
            raise
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """End it, whatever it does."""
        if self._log.closed:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        kill_session(self._process.pid)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _line(self, limit: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, end = self._process.stdout.fileno(), time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(end - time.monotonic(), 0.0)):
                    raise Lost(f"no answer within {limit:g} s: the process was ended")
                read = os.read(descriptor, 1 << 20)
                if not read:
                    raise Lost(self._reason())
                self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _reason(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        status = self._process.poll()
        return f"the process {'closed its output' if status is None else how_it_ended(status, self._log)}"


class Steady:
    """A process that another one follows if it is lost; `start` makes one."""

    def __init__(self, start: Callable[[], Worker]) -> None:
        self._start, self._worker = start, start()

    def __enter__(self) -> Steady:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def ask(self, do: str, limit: float = 600.0, **arguments: Any) -> Any:
        """See `Worker.ask`: the request that a process was lost by is not made again."""
        try:
            return self._worker.ask(do, limit, **arguments)
        except Lost:
            self._worker = self._start()
            raise
