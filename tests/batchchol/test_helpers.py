"""The threads that help with a call: as many as asked for, whenever in a process's life, and none that is needed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from batchchol import parallel
from batchchol.parallel import over_ranges

MUCH = 1 << 40
Run = Callable[..., subprocess.CompletedProcess[str]]

# A process of its own, since a handler may raise anywhere: in a destructor, and in what reports that.
STORM = f"""
import signal, sys, threading
from batchchol.parallel import over_ranges

class Enough(Exception):
    pass

helping, may_end, ended = threading.Event(), threading.Event(), []
sys.unraisablehook = lambda unraisable: None

def handler(number, frame):
    # Whoever is out of the call too early meets the next one at once.
    if not ended:
        raise Enough

def work(first, last):
    if threading.current_thread() is threading.main_thread():
        helping.wait(60)
        threading.Timer(0.2, may_end.set).start()
        signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
        while True:
            pass
    helping.set()
    may_end.wait(60)
    ended.append(first)
    return 0

signal.signal(signal.SIGALRM, handler)
try:
    over_ranges(work, 2, 2, {MUCH}, arrays=())
except Enough:
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("ended:", len(ended))
"""


def count_to(ranges: list[tuple[int, int]]) -> Callable[[int, int], int]:
    def work(first: int, last: int) -> int:
        ranges.append((first, last))
        return last

    return work


@pytest.fixture
def no_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_HELPERS", parallel._Helpers())


@pytest.mark.usefixtures("no_helpers")
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_caller_does_what_no_thread_can_be_started_for(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*arguments: object) -> int:
        raise error

    monkeypatch.setattr(parallel, "start_new_thread", refuse)
    ranges: list[tuple[int, int]] = []
    assert over_ranges(count_to(ranges), 6, 3, MUCH, arrays=()) == 6
    assert sorted(ranges) == [(i, i + 1) for i in range(6)]
    assert parallel._HELPERS._jobs.empty(), "a job that nobody fetches would keep its arrays"


@pytest.mark.usefixtures("no_helpers")
def test_helpers_are_as_many_as_the_largest_call_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = parallel.start_new_thread
    monkeypatch.setattr(parallel, "start_new_thread", lambda *given: started.append(1) or start(*given))
    for threads in (2, 5, 3, 5, 2):
        over_ranges(lambda first, last: 0, 100, threads, MUCH, arrays=())
    assert len(started) == 4


def test_pieces_take_a_fiftieth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pieces = [0.0], []

    def work(first: int, last: int) -> int:
        pieces.append(last - first)
        clock[0] += (last - first) * 1e-4
        return 0

    monkeypatch.setattr(parallel, "perf_counter", lambda: clock[0])
    over_ranges(work, 10_000, 1, 1 << 30, arrays=())
    assert pieces[0] == 10_000 >> 10, "a mebibyte first, since the speed is not known"
    assert max(pieces) <= 200
    assert sum(pieces) == 10_000
    assert len(pieces) < 60


def test_exception_of_a_signal_handler_ends_a_call_with_the_pieces_that_have_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Enough(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Enough

    working, done = [], []

    def work(first: int, last: int) -> int:
        working.append(first)
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGUSR1)
        done.append(first)
        return 0

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Enough):
            over_ranges(work, 100_000, 3, MUCH, arrays=())
        begun = len(working)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(done) in (begun - 1, begun), "every piece that had begun in a helper has ended"
    assert begun < 100_000
    assert len(working) == begun, "no piece has begun since"


def test_no_storm_of_signals_drives_a_call_out_while_a_helper_works(run_python: Run) -> None:
    done = run_python("-c", STORM)
    assert (done.returncode, done.stdout) == (0, "ended: 1\n"), done.stderr


@pytest.mark.parametrize("threads", [1, 3])
def test_arrays_are_released_when_the_call_has_ended(threads: int) -> None:
    array = np.zeros(10)
    alive = weakref.ref(array)
    for _ in range(5):
        over_ranges(lambda first, last: 0, 100, threads, MUCH, arrays=(array,))
    gc.disable()
    try:
        del array
        assert alive() is None
    finally:
        gc.enable()


def test_arrays_live_for_as_long_as_a_helper_works_whatever_becomes_of_the_caller() -> None:
    array, may_end, begun = np.zeros(10), threading.Event(), threading.Event()
    alive = weakref.ref(array)

    def work(first: int, last: int) -> int:
        begun.set()
        may_end.wait(60)
        return 0

    job = parallel._Job(work, [(0, 1)], 1, (array,))
    helper = threading.Thread(target=job.help)
    helper.start()
    begun.wait(60)
    # As if an exception had thrown the caller out of its own clean-up.
    del job, array
    gc.collect()
    assert alive() is not None
    may_end.set()
    helper.join(60)
    del helper
    assert alive() is None


def test_work_may_use_threads_itself() -> None:
    def work(first: int, last: int) -> int:
        return over_ranges(lambda begin, end: end, 50, 3, MUCH, arrays=()) * last

    assert over_ranges(work, 4, 3, MUCH, arrays=()) == 200


BEGIN = """
import asyncio, atexit, os, resource, sys, threading
import numpy as np
import batchchol

def count():
    return len(os.listdir("/proc/self/task"))

before = count()

def check(say, batch=40_000, n=5):
    a = np.broadcast_to(np.float64(9) * np.eye(n), (batch, n, n))
    print(say, np.array_equal(batchchol.cholesky(a), np.sqrt(a)), flush=True)

"""
AT_EXIT = "atexit.register(check, 'at exit')\n"
OUTLIVE = """
def outlive():
    threading.main_thread().join()
    check('outlived')

threading.Thread(target=outlive).start()
"""
ASYNCIO = """
async def main():
    check('coroutine')
    await asyncio.gather(*(asyncio.to_thread(check, 'thread') for _ in range(2)))

asyncio.run(main())
"""
NO_MEMORY = """
check('once')
os.environ['BATCHCHOL_THREADS'] = '4'
threading.stack_size(256 << 20)
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (160 << 20),) * 2)
check('without threads')
print(count() - before)
"""
SIZES = """
for batch in range(10_000, 400_000, 20_000):
    batchchol.cholesky(np.broadcast_to(np.eye(5), (batch, 5, 5)))
print(count() - before)
"""


@pytest.mark.parametrize(
    ("script", "threads", "printed"),
    [
        (AT_EXIT, "3", ["at exit True"]),
        ("check('before')\n" + AT_EXIT, "3", ["before True", "at exit True"]),
        (OUTLIVE, "3", ["outlived True"]),
        ("check('before')\n" + OUTLIVE, "3", ["before True", "outlived True"]),
        (ASYNCIO, "3", ["coroutine True", "thread True", "thread True"]),
        (NO_MEMORY, "1", ["once True", "without threads True", "0"]),
        (SIZES, "8", ["7"]),
    ],
    ids=["atexit", "atexit again", "main thread ended", "main thread ended again", "asyncio", "memory", "sizes"],
)
def test_in_every_age_of_a_process(run_python: Run, script: str, threads: str, printed: list[str]) -> None:
    if "/proc" in BEGIN and not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted in /proc")
    done = run_python("-c", BEGIN + script, BATCHCHOL_THREADS=threads)
    assert done.stdout.splitlines() == printed, done.stderr
    assert done.stderr == ""
    assert done.returncode == 0
