"""Memory that results leave behind, kept a moment for the next results of that size.

The system clears new pages before a process gets them, which takes longer than to factor small matrices. A result
lies in memory that is lent: what lends it is the base of the array, and of each view of it, so that the memory comes
back when the last of them is gone, as it would go to the system, and no earlier. At most two blocks wait to be lent
again, and a thread gives back to the system those that were not wanted for half a second.
"""

from __future__ import annotations

import os
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.host_memory import address_of, aligned_empty, total_bytes
from batchchol.errors import OutOfMemory

LEAST_BYTES = 1 << 20
"""Smaller results are the allocator's, which keeps them itself."""
IDLE_SECONDS = 0.5
# While results are held, and none comes or goes.
_LONGEST_SLEEP = 4.0
# A loop has a new result before it lets go of the one before.
_MOST_BLOCKS = 2
# Of the machine's memory, the share that one result may have to be kept.
_SHARE = 16


class _Loan(weakref.ref["_Lender"]):
    """What is left of a lender that has died: its memory, and whether that was idle before."""

    __slots__ = ("block", "seen")
    block: NDArray[np.uint8]
    seen: bool


class _Lender:
    """Lends a block to an array, whose base it is."""

    __slots__ = ("__array_interface__", "__weakref__", "_loan")

    def __init__(
        self, block: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any], end: Callable[[_Loan], None]
    ) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (address_of(block), False),
        }
        # A reference that lives as long as what it refers to: it is called, by C alone, when that dies.
        self._loan = _Loan(self, end)
        self._loan.block, self._loan.seen = block, False


class Pool:
    """Lends memory to results, and keeps it for a moment when it comes back."""

    def __init__(self) -> None:
        # Results that die append to it, in any thread and at any moment: it is never iterated over.
        self._idle: deque[_Loan] = deque(maxlen=_MOST_BLOCKS)
        self._lent: deque[weakref.ref[_Lender]] = deque()
        self._watched = False
        os.register_at_fork(after_in_child=self._begin_in_child)

    def _begin_in_child(self) -> None:
        self._watched = False

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> tuple[NDArray[Any], bool]:
        """An uninitialised C-contiguous array of `size` bytes, and whether its memory has been used before.

        Raises
        ------
        OutOfMemory
            If it would not fit.
        """
        purpose = f"an array of shape {shape}"
        if not LEAST_BYTES <= size <= total_bytes() // _SHARE:
            return aligned_empty(shape, dtype, purpose), False
        block = self._take(size)
        used = block is not None
        if block is None:
            block = self._new(size, purpose)
        lender = _Lender(block, shape, dtype, self._idle.append)
        self._lent.append(weakref.ref(lender))
        if not self._watched:
            self._watch()
        return np.asarray(lender), used

    def release(self) -> None:
        """Give back to the system what is idle."""
        self._idle.clear()

    def _take(self, size: int) -> NDArray[np.uint8] | None:
        """The block of this size that came back last, which may still be in the caches; None if there is none."""
        for _ in range(len(self._idle)):
            with suppress(IndexError):
                loan = self._idle.pop()
                if loan.block.nbytes == size:
                    return loan.block
                self._idle.appendleft(loan)
        return None

    def _new(self, size: int, purpose: str) -> NDArray[Any]:
        try:
            return aligned_empty((size,), np.uint8, purpose)
        except OutOfMemory:
            self.release()
            return aligned_empty((size,), np.uint8, purpose)

    def _watch(self) -> None:
        """Start the thread that gives back what is idle; without one nothing is kept."""
        self._watched = True
        try:
            start_new_thread(self._give_back, ())
        except (RuntimeError, MemoryError):
            # No memory for a stack, a limit on threads, or the interpreter ends.
            self._watched = False
            self._idle = deque(maxlen=0)

    def _give_back(self) -> None:
        """Until nothing is lent or idle: a result that dies after that was not lent before that."""
        pause = IDLE_SECONDS
        while self._watched:
            sleep(pause)
            before = len(self._lent)
            busy = self._let_go() or self._forget_dead() != before
            pause = IDLE_SECONDS if busy else min(2 * pause, _LONGEST_SLEEP)
            if not self._lent and not self._idle:
                self._watched = False
                # One that was lent meanwhile may have seen the thread still.
                self._watched = bool(self._lent or self._idle)

    def _let_go(self) -> bool:
        """Give back what was idle the last time already; whether anything was idle."""
        waiting = len(self._idle)
        for _ in range(waiting):
            with suppress(IndexError):
                loan = self._idle.pop()
                if not loan.seen:
                    loan.seen = True
                    self._idle.appendleft(loan)
                del loan
        return waiting > 0

    def _forget_dead(self) -> int:
        """How many lenders live."""
        for _ in range(len(self._lent)):
            reference = self._lent.popleft()
            if reference() is not None:
                self._lent.append(reference)
        return len(self._lent)


RESULTS = Pool()
