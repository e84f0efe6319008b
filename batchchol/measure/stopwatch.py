"""Timing calls of any library by the GPU's clock, also those that overwrite their input or take very long.

Events and the gate are on the default stream. Work on that stream, or on any other stream that waits for it (all but
those made with the flag "non-blocking"), begins behind the gate and ends before the last event. A library with a
non-blocking stream must wait for its own work inside the call: it can be timed as single calls alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count, cycle, islice

from batchchol.backends.cuda.measuring.clock import BURST_SECONDS, HOST_SECONDS, MOST_CALLS, Call, Clock

# Slow kernels get fewer samples, but never fewer than these, so that a long table is done in a day.
BUDGET_SECONDS, FEWEST_SAMPLES = 0.3, 5
WARM_UP_SAMPLES = 2
# Another library may launch several kernels a call; a queue that is full makes the host wait, gate or none.
FOREIGN_CALLS = 64
# No gate stays closed longer, whatever the host needs for a burst.
LONGEST_GATE_SECONDS = 20e-3
# By how much a gate stays closed longer than the host needed before.
_MARGIN = 1.5
_PROBE_CALLS = 8


@dataclass(frozen=True)
class Timing:
    """Seconds per call of each sample; `calls` calls make a sample, and `last` is the call whose result to check."""

    seconds: tuple[float, ...]
    calls: int
    last: int


class Stopwatch(Clock):
    """Times calls on a GPU's default stream."""

    def measure(
        self,
        calls: Sequence[Call],
        samples: int,
        protocol: str,
        *,
        restore: Callable[[], None] | None = None,
        most: int = MOST_CALLS,
    ) -> Timing:
        """Time equivalent calls on different buffers by a protocol of the backend's.

        Parameters
        ----------
        calls : sequence of callables
            Called in turn, round after round.
        samples : int
            How many samples to take, unless that takes too long.
        restore : callable, optional
            Makes all buffers inputs again, where calls overwrite theirs. It is called before every sample, outside
            the clock; a sample then uses no buffer twice.
        most : int
            Calls of a burst at most.
        """
        queued = protocol == "queued"
        with self._gpu.current("timing"), self._gpu.queueing() if queued else nullcontext():
            _undo(restore)
            self._bring_up(calls)
            host, estimate = self._probe(calls, restore)
            length = self._length(estimate, host, most, len(calls) if restore else most) if queued else 1
            share = BUDGET_SECONDS / (length * max(estimate, host))
            timing = self._samples(
                calls,
                max(min(samples, int(share)), min(samples, FEWEST_SAMPLES)),
                length,
                length * host * _MARGIN if queued and estimate < _MARGIN * host else 0.0,
                restore,
            )
            self._last_work = time.monotonic()
        return timing

    def _probe(self, calls: Sequence[Call], restore: Callable[[], None] | None) -> tuple[float, float]:
        """Seconds that the host needs to launch a call, and about those that the GPU needs for it."""
        few = calls[: min(_PROBE_CALLS, len(calls))]
        _undo(restore)
        self._gpu.synchronize()
        begin = time.perf_counter()
        for call in few:
            call()
        host = max((time.perf_counter() - begin) / len(few), HOST_SECONDS)
        _undo(restore)
        self._close_gate(min(len(few) * host * _MARGIN, LONGEST_GATE_SECONDS))
        return host, max(self._bursts(iter(few), len(few), 1)[0], 1e-7)

    @staticmethod
    def _length(estimate: float, host: float, most: int, buffers: int) -> int:
        """Calls of a burst: long enough to be timed well, short enough for the gate, the queue and the buffers."""
        wanted = max(round(BURST_SECONDS / estimate), 1)
        gated = max(int(LONGEST_GATE_SECONDS / (host * _MARGIN)), 1) if estimate < _MARGIN * host else wanted
        return min(wanted, gated, most, buffers)

    def _samples(
        self,
        calls: Sequence[Call],
        samples: int,
        length: int,
        gate: float,
        restore: Callable[[], None] | None,
    ) -> Timing:
        # If buffers are restored, every burst begins with the first.
        turns = count() if restore is None else cycle(range(length))
        places = (turn % len(calls) for turn in turns)
        taken, last = [], 0
        for _ in range(WARM_UP_SAMPLES + samples):
            chosen = list(islice(places, length))
            _undo(restore)
            # A call that is launched while the GPU is still busy would not show what launching takes.
            self._gpu.synchronize()
            if gate:
                self._close_gate(gate)
            taken += self._bursts((calls[place] for place in chosen), length, 1)
            last = chosen[-1]
        return Timing(tuple(taken[WARM_UP_SAMPLES:]), length, last)


def _undo(restore: Callable[[], None] | None) -> None:
    if restore is not None:
        restore()
