"""Work on ranges, spread over threads: C functions called through ctypes release the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise

from batchchol.errors import SettingError

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


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    # A forked child has none of its parent's threads: it makes its own pools.
    os.register_at_fork(after_in_child=_pool.cache_clear)
    return ThreadPoolExecutor(threads, thread_name_prefix="batchchol")
