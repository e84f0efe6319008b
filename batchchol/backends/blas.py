"""The BLAS of NumPy and SciPy, limited to fewer threads while several of ours call it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Limit each call of BLAS in this process to `threads` threads; a lower limit stays.

    A setting of the whole process: where several threads hold it at once, the first one's number counts, and the last
    one to leave puts back what was there before.
    """
    holder = object()
    try:
        _LIMIT.enter(holder, threads)
        yield
    finally:
        _LIMIT.leave(holder)


class _Limit:
    """Who holds the limit, and each library's number of threads before that.

    Signal handlers raise exceptions at any point of the main thread's code: what was there before is written down
    before anything is changed, and put back by the next one to leave if this one could not.
    """

    def __init__(self) -> None:
        self._registered = False
        self._begin()

    def _begin(self) -> None:
        # Reentrant: a signal handler may factor too.
        self._lock = RLock()
        self._holders: set[object] = set()
        self._before: list[tuple[Any, int]] = []

    def _begin_in_child(self) -> None:
        """Begin without the parent's threads, which would never leave."""
        before = self._before
        self._begin()
        _set(before)

    def enter(self, holder: object, threads: int) -> None:
        with self._lock:
            if not self._registered:
                os.register_at_fork(after_in_child=self._begin_in_child)
                self._registered = True
            if not self._before:
                self._before = [(library, library.get_num_threads()) for library in _libraries()]
            if not self._holders:
                _set([(library, min(count, threads)) for library, count in self._before])
            self._holders.add(holder)

    def leave(self, holder: object) -> None:
        with self._lock:
            self._holders.discard(holder)
            if not self._holders:
                _set(self._before)
                self._before = []


_LIMIT = _Limit()


def _set(counts: list[tuple[Any, int]]) -> None:
    for library, count in counts:
        if library.get_num_threads() != count:
            library.set_num_threads(count)


@cache
def _libraries() -> tuple[Any, ...]:
    """What threadpoolctl finds, cached: SciPy's BLAS is loaded by then, and looking takes half a millisecond."""
    from threadpoolctl import ThreadpoolController

    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)
