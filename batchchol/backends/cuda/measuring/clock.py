"""Timing by the GPU's own clock, in two protocols.

"single": event, call, event, and wait; it holds what launching costs, by PyCUDA. "queued": bursts of calls, back to
back, between two events, launched by the driver. Where a call takes the GPU less time than the host needs to launch
it, a burst would measure the host: it is then queued behind a kernel that runs until all of the burst is there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice, pairwise
from typing import Any

import numpy as np

from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.device import Device

Call = Callable[[], None]

# An idle GPU runs at a fraction of its clock: this much work brings it up, and a pause of this length loses it again.
WARM_UP_SECONDS, PAUSE_SECONDS = 0.3, 1.0
# A burst takes as long as this, if that is neither too few calls to be one nor more than the queue takes.
BURST_SECONDS, FEWEST_CALLS, MOST_CALLS = 2e-3, 4, 256
# Launching takes the host less than this (with room to spare): calls that take the GPU longer need no gate.
HOST_SECONDS = 15e-6
# So few that the queue takes them whatever they are: a full one makes the host wait for the GPU.
_HOST_CALLS = 8
# Launches that are queued at once in a series: past 1,024 the driver has the host wait.
MOST_QUEUED = 700
ESTIMATE_CALLS = 32
_GATE_THREADS = 32
_GATE_PROBE_STEPS = 100_000


class Clock:
    """Times calls on a GPU's default stream."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self._last_work = -math.inf
        self._gate_seconds_per_step = 0.0
        self._gate_memory: Any = None

    def seconds(self, calls: Sequence[Call], samples: int, protocol: str, warm_up: int) -> list[float]:
        """Seconds per call of each sample; the last call of all is calls[(samples - 1) % len(calls)]."""
        with self._gpu.current("timing"):
            self._bring_up(calls)
            if protocol == "single":
                turns = _turns(calls, first=-warm_up)
                taken = [self._bursts(turns, 1, 1)[0] for _ in range(warm_up + samples)]
            else:
                with self._gpu.queueing():
                    taken = self._queued(calls, warm_up + samples, last=samples)
            self._last_work = time.monotonic()
        return taken[warm_up:]

    def series(
        self, calls: Sequence[Call], samples: int, warm_up: int, burst_seconds: float
    ) -> tuple[list[float], int]:
        """Seconds per call of each sample by the protocol "queued", in the shortest time; and the calls of a burst.

        The bursts follow each other without a pause, all of them queued before the first one ends, and take about
        `burst_seconds` each. The last call of all is calls[(samples - 1) % len(calls)].
        """
        with self._gpu.current("timing"), self._gpu.queueing():
            self._bring_up(calls)
            estimate, host = self._launch_costs(calls)
            most = max(1, MOST_QUEUED // (samples + warm_up))
            count = min(max(round(burst_seconds / estimate), 1), most)
            bursts = samples + warm_up
            if estimate < HOST_SECONDS:
                self._close_gate(min(HOST_SECONDS, 1.5 * host) * count * bursts)
            taken = self._bursts(_turns(calls, first=samples - bursts * count), count, bursts)
            self._last_work = time.monotonic()
        return taken[warm_up:], count

    def in_turn(self, bursts: Sequence[Sequence[Call]]) -> list[float]:
        """Seconds per call of each of several consecutive bursts, begun when all of them are queued."""
        with self._gpu.current("timing"), self._gpu.queueing():
            self._bring_up(bursts[0])
            self._close_gate(HOST_SECONDS * sum(map(len, bursts)))
            taken = self._timed(bursts)
            self._last_work = time.monotonic()
        return taken

    def _bursts(self, turns: Iterator[Call], count: int, bursts: int) -> list[float]:
        """Seconds per call of bursts of as many calls, queued at once."""
        return self._timed([list(islice(turns, count)) for _ in range(bursts)])

    def _timed(self, bursts: Sequence[Sequence[Call]]) -> list[float]:
        """Seconds per call of each burst, all queued at once: an event before the first and after each."""
        events = [self._gpu.pycuda.Event() for _ in range(len(bursts) + 1)]
        events[0].record()
        for burst, event in zip(bursts, events[1:], strict=True):
            for call in burst:
                call()
            event.record()
        events[-1].synchronize()
        spans = zip(bursts, pairwise(events), strict=True)
        return [float(start.time_till(end)) * 1e-3 / len(burst) for burst, (start, end) in spans]

    def _launch_costs(self, calls: Sequence[Call]) -> tuple[float, float]:
        """About how long a call takes the GPU, and how long launching it takes the host."""
        count = min(ESTIMATE_CALLS, len(calls))
        self._close_gate(count * HOST_SECONDS)
        start, end = self._gpu.pycuda.Event(), self._gpu.pycuda.Event()
        start.record()
        begin = time.perf_counter()
        for call in islice(calls, count):
            call()
        host = time.perf_counter() - begin
        end.record()
        end.synchronize()
        return max(float(start.time_till(end)) * 1e-3 / count, 1e-7), host / count

    def host_seconds(self, call: Call, samples: int) -> list[float]:
        """Seconds that the host takes to queue a call, in each sample."""
        taken = []
        with self._gpu.current("timing"):
            call()
            for _ in range(samples):
                self._gpu.synchronize()
                begin = time.perf_counter()
                for _ in range(_HOST_CALLS):
                    call()
                taken.append((time.perf_counter() - begin) / _HOST_CALLS)
            self._gpu.synchronize()
        return taken

    def _queued(self, calls: Sequence[Call], bursts: int, last: int) -> list[float]:
        """Seconds per call of each burst; the last call of all is calls[last - 1], modulo their number."""
        estimate, _ = self._launch_costs(calls)
        count = min(max(round(BURST_SECONDS / estimate), FEWEST_CALLS), MOST_CALLS)
        gated = estimate < HOST_SECONDS
        turns = _turns(calls, first=last - bursts * count)
        taken = []
        for _ in range(bursts):
            if gated:
                self._close_gate(count * HOST_SECONDS)
            taken += self._bursts(turns, count, 1)
        return taken

    def _bring_up(self, calls: Sequence[Call]) -> None:
        """Work until the clock is up, unless it still is."""
        # A first call may compile and load what it launches: it must not be taken for a long one.
        calls[0]()
        self._gpu.synchronize()
        begin = time.monotonic()
        if begin - self._last_work < PAUSE_SECONDS:
            return
        turns = cycle(calls)
        while time.monotonic() - begin < WARM_UP_SECONDS:
            for call in islice(turns, FEWEST_CALLS):
                call()
            self._gpu.synchronize()

    def _close_gate(self, seconds: float) -> None:
        """Queue a kernel that takes about as long: what is queued meanwhile starts when it ends."""
        if self._gate_memory is None:
            self._gate_memory = memory.empty((_GATE_THREADS,), np.float32, "what holds a burst back")
            self._gate(1)
            (seconds,) = self._bursts(iter([lambda: self._gate(_GATE_PROBE_STEPS)]), 1, 1)
            self._gate_seconds_per_step = seconds / _GATE_PROBE_STEPS
        self._gate(math.ceil(seconds / self._gate_seconds_per_step))

    def _gate(self, steps: int) -> None:
        support.multiply_add(self._gpu, int(self._gate_memory.gpudata), _GATE_THREADS, steps, "float32")


def _turns(calls: Sequence[Call], first: int) -> Iterator[Call]:
    """calls[first], calls[first + 1], ..., endlessly, all indices modulo their number."""
    return islice(cycle(calls), first % len(calls), None)
