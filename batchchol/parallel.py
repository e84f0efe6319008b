"""Work on threads, where C functions called through ctypes release the interpreter's lock, or in processes."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from functools import cache, partial
from itertools import pairwise
from queue import SimpleQueue
from threading import Lock, RLock
from time import perf_counter
from typing import Any, TypeVar

from batchchol.errors import SettingError

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")

# Handing work to a thread and waiting for it costs about 30 us (measured): smaller shares take no longer.
SHARE_BYTES = 1 << 20
# An interrupted call ends with the pieces that have begun; between two of them a thread spends some 3 us in Python.
_PIECE_SECONDS = 0.02
_MOST_THREADS = 1 << 16
_SEMAPHORE_BYTES = 64  # sem_t of every C library has fewer


def available_threads(work_bytes: int | None = None) -> int:
    """Threads to use: BATCHCHOL_THREADS, else the cores that this process may run on.

    For work on so few bytes that `over_ranges` leaves it to the calling thread the cores are not counted, which
    would take longer than the rest of a small call.

    Raises
    ------
    SettingError
        If BATCHCHOL_THREADS is not an integer from 1 to 65,536.
    """
    chosen = setting("BATCHCHOL_THREADS")
    if not chosen:
        if work_bytes is not None and work_bytes < SHARE_BYTES:
            return 1
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    digits = chosen.isascii() and chosen.isdecimal() and chosen.lstrip("0")
    if not digits or len(digits) > len(str(_MOST_THREADS)) or int(digits) > _MOST_THREADS:
        shown = repr(chosen if len(chosen) <= 40 else f"{chosen[:40]}...")
        raise SettingError(
            f"BATCHCHOL_THREADS={shown} is not a number of threads: use a positive integer up to {_MOST_THREADS:,}"
        )
    return int(digits)


def setting(name: str) -> str | None:
    """The value of an environment variable; None if it is not set or empty.

    `os.environ` raises and catches an exception for one that is not set, which takes as long as to factor a dozen
    small matrices: the C library is asked first.
    """
    return os.environ.get(name) or None if _getenv()(name.encode()) else None


@cache
def _getenv() -> Callable[[bytes], int | None]:
    # The interpreter's lock is kept: no other thread changes the environment meanwhile.
    found = ctypes.PyDLL(None).getenv
    found.argtypes, found.restype = (ctypes.c_char_p,), ctypes.c_void_p
    return found


def over_ranges(
    work: Callable[[int, int], int], count: int, threads: int, work_bytes: int, *, arrays: Iterable[object]
) -> int:
    """Call work(first, last) on ranges that cover 0, ..., count - 1, and return the largest result.

    When this returns or raises, no thread works any more. An exception, also one that a signal handler raises, ends
    the call as soon as the pieces that have begun are done, within a few hundredths of a second. May be called from
    any thread, from `work` itself, from signal handlers and at the interpreter's exit.

    Parameters
    ----------
    work : callable
        May be called from several threads at once. Ranges do not overlap.
    threads : int
        How many threads take part at most, the caller's included. What no thread can be started for, the caller does.
    work_bytes : int
        What all ranges move together: little work stays in the calling thread.
    arrays : iterable of object
        The owners of all memory that `work` has the bare addresses of: they live for as long as a thread has it.
    """
    if work_bytes < SHARE_BYTES or count <= 1:
        return work(0, count)
    shares = max(1, min(threads, count, work_bytes // SHARE_BYTES))
    bounds = [count * share // shares for share in range(shares + 1)]
    job = _Job(work, pairwise(bounds), max(1, count * SHARE_BYTES // work_bytes), tuple(arrays))
    ending = job.ending()
    try:
        _HELPERS.offer(job, shares - 1)
        job.run()
    except BaseException:
        job.cancelled = True
        raise
    finally:
        # Signal handlers run at calls, returns and jumps of Python code: from an exception to here there are none.
        _ = [*ending]
        job.release()
    return job.result()


class _Job:
    """The shares of one call: each thread that takes part takes one after another, and does it piece by piece."""

    def __init__(
        self,
        work: Callable[[int, int], int],
        shares: Iterable[tuple[int, int]],
        piece: int,
        arrays: tuple[object, ...],
    ) -> None:
        self.cancelled = False
        self._work = work
        self._arrays = arrays
        self._shares = deque(shares)
        self._piece = piece
        self._results: list[int] = []
        self._error: BaseException | None = None
        # Only helpers take the lock, which no signal interrupts.
        self._counting = Lock()
        self._helping = 0
        self._ended = (ctypes.c_char * _SEMAPHORE_BYTES)()
        _libc().sem_init(self._ended, 0, 0)

    def run(self) -> None:
        """Take shares until there is none left."""
        while not self.cancelled:
            try:
                first, last = self._shares.popleft()
            except IndexError:
                return
            self._run_share(first, last)

    def _run_share(self, first: int, last: int) -> None:
        piece = self._piece
        while first < last and not self.cancelled:
            end = min(last, first + piece)
            begin = perf_counter()
            self._results.append(self._work(first, end))
            seconds = max(perf_counter() - begin, 1e-9)
            piece = max(1, int(piece * min(4.0, _PIECE_SECONDS / seconds)))
            first = end

    def help(self) -> None:
        """Take part, in a helper's thread."""
        # Counted before a share is taken: a caller that finds neither a share nor a helper may leave.
        with self._counting:
            self._helping += 1
        try:
            self.run()
        except BaseException as error:
            self._error, self.cancelled = error, True
        finally:
            with self._counting:
                self._helping -= 1
            _libc().sem_post(self._ended)

    def ending(self) -> Iterator[tuple[int, int]]:
        """An iterator that ends when no helper works on the job, and waits for that.

        All of it is implemented in C. The caller that unpacks it stays until the end: before that, Python runs no
        signal handler, which could raise an exception.
        """
        working = iter(partial(getattr, self, "_helping"), 0)
        waiting = iter(partial(_libc().sem_wait, self._ended), None)
        return zip(working, waiting, strict=False)

    def release(self) -> None:
        """Let go of the arrays: helpers that come late to an offer find no share, and need none."""
        self._work, self._arrays = _nothing, ()

    def result(self) -> int:
        """The largest result, or what a helper raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return max(self._results)


def _nothing(first: int, last: int) -> int:
    return 0


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class _Helpers:
    """The threads that help: as many as the largest call asked for, made when they are first asked for.

    They are daemons, since they wait for work for as long as the process lives; a process that ends takes none of
    their arrays away from them.
    """

    def __init__(self) -> None:
        self._registered = False
        self._begin()

    def _begin(self) -> None:
        """Begin without threads, as in a forked child, which has none of its parent's."""
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        # Reentrant: a signal handler may want helpers while its thread starts some.
        self._starting = RLock()
        self._count = 0

    def offer(self, job: _Job, wanted: int) -> None:
        """Ask `wanted` helpers for help with a job; there may be fewer."""
        if self._count < wanted:
            self._start(wanted)
        for _ in range(min(wanted, self._count)):
            self._jobs.put(job)

    def _start(self, wanted: int) -> None:
        with self._starting:
            if not self._registered:
                os.register_at_fork(after_in_child=self._begin)
                self._registered = True
            try:
                while self._count < wanted:
                    # Not threading.Thread, whose start() waits for the thread: one that has no memory never answers.
                    start_new_thread(_help, (self._jobs,))
                    self._count += 1
            except (RuntimeError, MemoryError):
                # No memory for a stack, a limit on threads, or the interpreter ends.
                return


def _help(jobs: SimpleQueue[_Job]) -> None:
    while True:
        # No name holds the job while the thread waits for the next one.
        jobs.get().help()


_HELPERS = _Helpers()


def in_processes(
    work: Callable[[Shared, Task], Result], shared: Shared, tasks: Sequence[Task], processes: int
) -> Iterator[Result]:
    """work(shared, task) of every task, as they complete, in N processes; in this one where N is 1.

    Parameters
    ----------
    work : callable
        A function of a module, since every process imports it.
    shared : object
        Sent to each process once.

    Raises
    ------
    BrokenProcessPool
        If a process dies.

    Whatever ends this early, such as an interrupt, ends the processes, and so does the end of this one.
    """
    if processes == 1:
        yield from (work(shared, task) for task in tasks)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Not forked: other threads may hold locks at that moment.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, context, _begin_process, (work, shared))
    try:
        for done in as_completed([pool.submit(_work, task) for task in tasks]):
            yield done.result()
    except BaseException:
        # What they are at is not waited for.
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_mine: list[Any] = []


def _begin_process(work: Any, shared: Any) -> None:
    # Ctrl-C is for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _mine[:] = work, shared


def _end_with_parent() -> None:
    """A pool's processes hold both ends of its pipes: they would wait for ever for a parent that was killed."""
    from multiprocessing import connection, parent_process

    if parent := parent_process():
        connection.wait([parent.sentinel])
        os._exit(1)


def _work(task: Any) -> Any:
    work, shared = _mine
    return work(shared, task)
