"""Work on threads, where C functions called through ctypes release the interpreter's lock, or in processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from batchchol.errors import SettingError

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")

# Handing work to a thread and waiting for it costs about 30 us (measured): smaller shares take no longer.
_SHARE_BYTES = 1 << 20


def available_threads() -> int:
    """Threads to use: BATCHCHOL_THREADS, else the cores that this process may run on.

    Raises
    ------
    SettingError
        If BATCHCHOL_THREADS is not a positive integer.
    """
    chosen = os.environ.get("BATCHCHOL_THREADS")
    if not chosen:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not chosen.isdecimal() or int(chosen) < 1:
        raise SettingError(f"BATCHCHOL_THREADS={chosen!r} is not a number of threads: use a positive integer")
    return int(chosen)


def over_ranges(work: Callable[[int, int], int], count: int, threads: int, work_bytes: int) -> int:
    """Call work(first, last) on ranges that cover 0, ..., count - 1; the largest of what the calls return."""
    shares = max(1, min(threads, count, work_bytes // _SHARE_BYTES))
    if shares == 1:
        return work(0, count)
    bounds = [count * share // shares for share in range(shares + 1)]
    others: list[Future[int]] = []
    try:
        others += (_pool(shares - 1).submit(work, *bound) for bound in pairwise(bounds[1:]))
        own = work(bounds[0], bounds[1])
    finally:
        # Whatever happened here, the other threads still work on the caller's arrays.
        wait(others)
    return max(own, *(future.result() for future in others))


def in_processes(
    work: Callable[[Shared, Task], Result], shared: Shared, tasks: Sequence[Task], processes: int
) -> Iterator[Result]:
    """work(shared, task) of every task, each as it comes, in so many processes; with one of them in this process.

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
    """
    if processes == 1:
        yield from (work(shared, task) for task in tasks)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Not forked: other threads may hold locks at that moment.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _begin_process, (work, shared))
    try:
        for done in as_completed([pool.submit(_work, task) for task in tasks]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


_mine: list[Any] = []


def _begin_process(work: Any, shared: Any) -> None:
    # Ctrl-C is for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _mine[:] = work, shared


def _work(task: Any) -> Any:
    work, shared = _mine
    return work(shared, task)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    # A forked child has none of its parent's threads: it makes its own pools.
    os.register_at_fork(after_in_child=_pool.cache_clear)
    return ThreadPoolExecutor(threads, thread_name_prefix="batchchol")
