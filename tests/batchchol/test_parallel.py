"""Threads: every range once, every exception seen, nothing left running, also after a fork."""

from __future__ import annotations

import operator
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchchol.errors import SettingError
from batchchol.parallel import available_threads, in_processes, over_ranges

MUCH = 1 << 40


@given(count=st.integers(1, 1000), threads=st.integers(1, 6), work_bytes=st.sampled_from([0, 1 << 20, 3 << 20, MUCH]))
def test_ranges_cover_everything_once(count: int, threads: int, work_bytes: int) -> None:
    ranges: list[tuple[int, int]] = []

    def work(first: int, last: int) -> int:
        ranges.append((first, last))
        return last

    assert over_ranges(work, count, threads, work_bytes, arrays=()) == count, "the largest of the results"
    ranges.sort()
    assert [first for first, _ in ranges] == [0, *(last for _, last in ranges[:-1])]
    assert ranges[-1][1] == count
    assert all(first < last for first, last in ranges)


def test_much_work_runs_on_as_many_threads_as_asked_for() -> None:
    together = threading.Barrier(3, timeout=60)
    threads = set()

    def work(first: int, last: int) -> int:
        together.wait()
        threads.add(threading.get_ident())
        return 0

    over_ranges(work, 3, 3, MUCH, arrays=())
    assert len(threads) == 3
    assert threading.get_ident() in threads


def test_little_work_stays_on_its_thread() -> None:
    seen = []

    def work(first: int, last: int) -> int:
        seen.append((threading.get_ident(), first, last))
        return 0

    over_ranges(work, 1000, 8, 1 << 19, arrays=())
    assert seen == [(threading.get_ident(), 0, 1000)]


def test_nothing_to_do() -> None:
    seen = []
    assert over_ranges(lambda first, last: seen.append((first, last)) or 0, 0, 4, MUCH, arrays=()) == 0
    assert seen in ([], [(0, 0)])


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_exception_of_any_share_comes_out_once_all_have_ended(failing: int) -> None:
    all_work, others_may_end, ended = threading.Barrier(3, timeout=60), threading.Event(), []

    def work(first: int, last: int) -> int:
        all_work.wait()
        if first == failing:
            threading.Timer(0.2, others_may_end.set).start()
            raise ZeroDivisionError
        others_may_end.wait(60)
        ended.append(first)
        return 0

    with pytest.raises(ZeroDivisionError):
        over_ranges(work, 3, 3, MUCH, arrays=())
    # The arrays that the shares work on may be gone as soon as the call has ended.
    assert sorted([*ended, failing]) == [0, 1, 2]


def test_callers_on_many_threads_at_once() -> None:
    results = []

    def call(number: int) -> None:
        for _ in range(20):
            results.append(over_ranges(lambda first, last: number * last, 100, 4, MUCH, arrays=()) == number * 100)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert results == [True] * 160


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATCHCHOL_THREADS", raising=False)
    assert available_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("BATCHCHOL_THREADS", "13")
    assert available_threads() == 13
    monkeypatch.setenv("BATCHCHOL_THREADS", "")
    assert available_threads() == len(os.sched_getaffinity(0)), "an empty variable is no choice"


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", " ", "²", "３", "1_0", "000", "65537", "9" * 5000])
def test_bad_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BATCHCHOL_THREADS", value)
    with pytest.raises(SettingError, match=r"BATCHCHOL_THREADS=.* use a positive integer") as caught:
        available_threads()
    assert repr(value)[:40] in str(caught.value)
    assert len(str(caught.value)) < 200


FORK = """
import os, sys
import numpy as np
import batchchol
a = np.broadcast_to(5 * np.eye(5), (40_000, 5, 5))
expected = batchchol.cholesky(a)
child = os.fork()
equal = np.array_equal(batchchol.cholesky(a), expected)
if child == 0:
    sys.exit(0 if equal else 1)
_, status = os.waitpid(child, 0)
print(equal, os.waitstatus_to_exitcode(status))
"""
PROCESSES = """
import multiprocessing, sys
import numpy as np
import batchchol

def work(seed):
    r = np.random.default_rng(seed).random((20_000, 5, 5))
    a = (r + r.swapaxes(1, 2)) / 2 + 5 * np.eye(5)
    return float(np.abs(batchchol.cholesky(a) - np.linalg.cholesky(a)).max())

if __name__ == "__main__":
    work(0)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(max(pool.map(work, range(4))) < 1e-12)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_threads_work_on_both_sides_of_a_fork(run_python: Run) -> None:
    done = run_python("-W", "ignore", "-c", FORK, BATCHCHOL_THREADS="3")
    assert done.stdout == "True 0\n", done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes(run_python: Run, tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    done = run_python("-W", "ignore", script, method, BATCHCHOL_THREADS="2")
    assert done.stdout == "True\n", done.stderr


def test_importing_and_using_one_thread_starts_no_other(run_python: Run) -> None:
    script = """
import os, numpy
before = len(os.listdir("/proc/self/task"))
import batchchol
batchchol.cholesky(numpy.broadcast_to(5 * numpy.eye(5), (40_000, 5, 5)))
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = run_python("-c", script, BATCHCHOL_THREADS="1")
    assert done.stdout == "0\n", done.stderr


def test_tasks_are_spread_over_processes() -> None:
    assert sorted(in_processes(operator.mul, 10, range(5), 2)) == [0, 10, 20, 30, 40]
    assert list(in_processes(operator.mul, 10, range(3), 1)) == [0, 10, 20]
    with pytest.raises(ZeroDivisionError):
        list(in_processes(operator.floordiv, 10, [1, 0], 2))
