"""Memory that results leave behind: never lent while anybody has it, never kept for long."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import cholesky
from batchchol.batches import reuse
from batchchol.batches.reuse import Pool

SHAPE, FLOAT = (100, 8, 8), np.dtype(np.float32)
SIZE = 4 * 100 * 8 * 8


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """One that lends any size, and has its own thread."""
    monkeypatch.setattr(reuse, "LEAST_BYTES", 1)
    return Pool()


def lent(pool: Pool) -> tuple[NDArray[np.float32], bool]:
    return pool.empty(SHAPE, FLOAT, SIZE)


def test_memory_comes_back_with_the_last_that_has_it(pool: Pool) -> None:
    first, used = lent(pool)
    assert not used
    assert (first.shape, first.dtype, first.flags.c_contiguous, first.flags.writeable) == (SHAPE, FLOAT, True, True)
    address, part = first.ctypes.data, memoryview(first[3:].T.data)
    del first
    second, used = lent(pool)
    assert not used
    assert second.ctypes.data != address
    del part
    third, used = lent(pool)
    assert used
    assert third.ctypes.data == address
    del third
    assert not pool.empty((99, 8, 8), FLOAT, SIZE - 256)[1], "a block of another size"


def test_two_blocks_are_kept_and_none_for_long(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "IDLE_SECONDS", 0.02)
    held = [lent(pool)[0] for _ in range(5)]
    held.clear()
    assert len(pool._idle) <= 2
    end = time.monotonic() + 5
    while (pool._idle or pool._watched) and time.monotonic() < end:
        time.sleep(0.01)
    assert not pool._idle
    assert not pool._watched, "the thread ends when there is nothing to give back"
    lent(pool)
    assert pool._watched


def test_nothing_is_kept_where_no_thread_can_be_started(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(reuse, "start_new_thread", refuse)
    lent(pool)
    lent(pool)
    assert not lent(pool)[1]


def test_results_of_threads_and_signal_handlers_are_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "LEAST_BYTES", 1)
    scales = np.arange(1, 9, dtype=np.float32)
    matrices = [np.tile(scale**2 * np.eye(12, dtype=np.float32), (64, 1, 1)) for scale in scales]
    wrong: list[float] = []

    def check(which: int) -> None:
        l = cholesky(matrices[which])
        other = cholesky(matrices[which - 1])
        if (l != np.sqrt(matrices[which])).any() or (other != np.sqrt(matrices[which - 1])).any():
            wrong.append(scales[which])

    def handler(number: int, frame: FrameType | None) -> None:
        check(7)
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        with ThreadPoolExecutor(3) as threads:
            futures = [threads.submit(check, which % 7) for which in range(100)]
            for which in range(100):
                check(which % 7)
            for future in futures:
                future.result()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not wrong


FORK = """
import os
import numpy as np
from batchchol import cholesky
a = np.tile(4 * np.eye(8, dtype=np.float32), (16384, 1, 1))
mine = cholesky(a)
cholesky(a)
child = os.fork()
for scale in (1, 9):
    other = cholesky(scale * a)
    assert (other == np.sqrt(scale * a)).all() and (mine == np.sqrt(a)).all()
    del other
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_forked_processes_lend_memory_of_their_own(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python("-W", "ignore", "-c", FORK, BATCHCHOL_THREADS="1")
    assert done.returncode == 0, done.stderr
