"""Joules of a call, by the counter of the device: NVML's of a GPU, RAPL's of a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, pairwise
from typing import NamedTuple

from batchchol.backends import Backend
from batchchol.backends.base import check_runnable
from batchchol.batches.batch import Batch
from batchchol.errors import BatchcholError
from batchchol.measure.timing import rotating_buffers
from kernelgen import KernelSpec

SECONDS, IDLE_SECONDS = 5.0, 2.0
"""The least time that calls are repeated, and that a device is watched without any."""

_WARM_UP_SHARE = 0.2

# Counters move in steps, of 0.1 s on GPUs: they are read far more often, after bursts of this length.
_BURST_SECONDS = 0.01
_IDLE_STEP_SECONDS = 0.005
_FEWEST_STEPS = 3


@dataclass(frozen=True)
class Energy:
    """What calls used.

    Attributes
    ----------
    joules : float
        Of a call, all that the device uses meanwhile, when idle too.
    uncertainty : float
        Of `joules`: a step of the counter, which is not seen while it passes.
    watts : float
        The mean power while calls were repeated.
    seconds : float
        Of a call, by the host's clock, repeated for `span` seconds.
    span : float
        Seconds between the counter's first and last step that counted.
    """

    joules: float
    uncertainty: float
    watts: float
    seconds: float
    span: float

    def of(self, calls: int) -> Energy:
        """The energy of one call, where these are several."""
        return replace(
            self, joules=self.joules / calls, uncertainty=self.uncertainty / calls, seconds=self.seconds / calls
        )

    def without(self, other: Energy) -> Energy:
        """What is left of calls that also do what `other` measured alone."""
        return replace(
            self,
            joules=self.joules - other.joules,
            uncertainty=self.uncertainty + other.uncertainty,
            seconds=self.seconds - other.seconds,
        )


NO_COUNTER = (
    "this device does not say what energy it uses: a GPU needs nvidia-ml-py and a driver that counts, a CPU readable "
    "files /sys/class/powercap/intel-rapl:*/energy_uj"
)


class _Step(NamedTuple):
    """The counter has just moved: when, to how many joules, after how many calls."""

    time: float
    joules: float
    calls: int


def measure_energy(
    calls: Sequence[Callable[[], None]],
    synchronize: Callable[[], None],
    read_joules: Callable[[], float | None],
    *,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy:
    """Repeat calls, in turn, until the counter has moved for `seconds`, after a fifth of that for warming up.

    Parameters
    ----------
    calls : sequence of callables
        Equivalent calls on different buffers.
    synchronize : callable
        Waits until the device has done them.
    read_joules : callable
        What the device has used since some moment; None if it does not say.

    Raises
    ------
    BatchcholError
        If the device does not count its energy, or its counter stands still.
    """
    turns = count()

    def burst(length: int) -> None:
        for _ in range(length):
            calls[next(turns) % len(calls)]()
        synchronize()

    length = _burst_length(burst, len(calls), clock)
    steps = _steps(lambda: burst(length), length, read_joules, _WARM_UP_SHARE * seconds, seconds, clock)
    first, last = steps[0], steps[-1]
    span, done = last.time - first.time, last.calls - first.calls
    watts = (last.joules - first.joules) / span
    widest = max(later.time - sooner.time for sooner, later in pairwise(steps))
    joules = watts * span / done
    return Energy(joules, joules * widest / span, watts, span / done, span)


def device_energy(backend: Backend, calls: Sequence[Callable[[], None]], seconds: float) -> Energy:
    """`measure_energy` of calls on a backend's device, queued where it is a GPU."""
    if backend.name != "cuda":
        return measure_energy(calls, lambda: None, backend.joules, seconds=seconds)
    from batchchol.backends.cuda.device import device

    gpu = device()
    with gpu.current("measuring energy"), gpu.queueing():
        return measure_energy(calls, gpu.synchronize, backend.joules, seconds=seconds)


def factor_energy(
    backend: Backend, spec: KernelSpec, batch: Batch, *, seconds: float = SECONDS, threads: int = 1
) -> Energy:
    """What factoring an SPD batch uses, out of place, on copies that go round the last-level cache; checked.

    Raises
    ------
    BatchcholError
        As `measure_energy`; or the result is wrong.
    """
    check_runnable(backend, spec, batch)
    kernel, info = backend.kernel(spec), backend.info(batch, spec)
    pairs = rotating_buffers(backend, batch)
    spent = device_energy(backend, [partial(kernel, *pair, info, threads=threads) for pair in pairs], seconds)
    backend.check(batch, pairs[0][1].marked(spec.problem.uplo), info, spec.problem.math)
    return spent


def idle_watts(
    read_joules: Callable[[], float | None],
    *,
    seconds: float = IDLE_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """The mean power of a device that has nothing to do.

    Raises
    ------
    BatchcholError
        As `measure_energy`.
    """
    steps = _steps(lambda: sleep(_IDLE_STEP_SECONDS), 1, read_joules, 0.0, seconds, clock)
    return (steps[-1].joules - steps[0].joules) / (steps[-1].time - steps[0].time)


def _burst_length(burst: Callable[[int], None], buffers: int, clock: Callable[[], float]) -> int:
    """Calls that take about `_BURST_SECONDS` together."""
    burst(buffers)
    length, begin = 1, clock()
    burst(length)
    while (taken := clock() - begin) < _BURST_SECONDS / 2:
        length, begin = 2 * length, clock()
        burst(length)
    return max(round(length * _BURST_SECONDS / taken), 1)


def _steps(
    work: Callable[[], None],
    length: int,
    read_joules: Callable[[], float | None],
    warm_up: float,
    seconds: float,
    clock: Callable[[], float],
) -> list[_Step]:
    """The steps of the counter while `work` goes on, the first of them after `warm_up`, the last `seconds` later.

    Where the counter stands still, this ends after twice the time.
    """
    begin, before, steps = clock(), _read(read_joules), list[_Step]()
    for turn in count(1):
        work()
        now, joules = clock(), _read(read_joules)
        if joules != before and now - begin >= warm_up:
            steps.append(_Step(now, joules, turn * length))
        before = joules
        if steps and now - steps[0].time >= seconds and steps[-1].time == now and len(steps) >= _FEWEST_STEPS:
            return steps
        if now - begin > 2 * (warm_up + seconds) + 1:
            break
    raise BatchcholError(
        f"the energy counter moved {len(steps)} times in {clock() - begin:.1f} s: too coarse for joules"
    )


def _read(read_joules: Callable[[], float | None]) -> float:
    joules = read_joules()
    if joules is None:
        raise BatchcholError(NO_COUNTER)
    return joules
