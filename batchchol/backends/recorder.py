"""Who takes the factorizations of this thread in place of running them: a graph that is being recorded, if any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from batchchol.backends.base import Kernel
from batchchol.batches.batch import Batch


class Recorder(Protocol):
    """What takes factorizations."""

    def add(self, kernel: Kernel, a: Batch, out: Batch, info: Any, stream: Any) -> None:
        """Take the factorization of `a` into `out` and `info`; the arguments are those of the kernel."""


# Of a thread, and of a task: others are not affected.
_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
current_recorder = _recorder.get


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Have `recorder` take the factorizations of this thread.

    Raises
    ------
    RuntimeError
        If there is one already.
    """
    if current_recorder() is not None:
        raise RuntimeError("a graph is being recorded in this thread: end that recording before the next begins")
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)
