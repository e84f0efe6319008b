"""The GPU's clock: which calls a sample is of, how many, and what stands before them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from batchchol.backends.cuda.device import device
from batchchol.backends.cuda.measuring import clock as clock_module
from batchchol.backends.cuda.measuring.clock import ESTIMATE_CALLS, FEWEST_CALLS, MOST_CALLS, MOST_QUEUED, Clock

from ....fakes.pycuda import FakeGpu


class Calls:
    """Calls that take the fake GPU some time and note that they were made."""

    def __init__(self, gpu: FakeGpu, count: int, seconds: float) -> None:
        self.gpu, self.seconds, self.made = gpu, seconds, list[int]()
        self.calls = [lambda place=place: self.make(place) for place in range(count)]

    def make(self, place: int) -> None:
        self.made.append(place)
        self.gpu.clock += self.seconds


@pytest.fixture
def clock(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(clock_module, "WARM_UP_SECONDS", 0.0)
    return Clock(device())


def gates(gpu: FakeGpu) -> int:
    return sum(entry.startswith("multiply_add") for entry, _, _ in gpu.launches)


def test_single_calls(fake_gpu: FakeGpu, clock: Clock) -> None:
    timed = Calls(fake_gpu, 3, 1e-4)
    assert clock.seconds(timed.calls, 4, "single", 2) == pytest.approx([1e-4] * 4)
    assert timed.made == [0, 1, 2, 0, 1, 2, 0], "one before all; the last is calls[(samples - 1) % 3]"


@pytest.mark.parametrize(("seconds", "length"), [(1.0, FEWEST_CALLS), (1e-4, 20), (1e-6, MOST_CALLS)])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_bursts(fake_gpu: FakeGpu, clock: Clock, seconds: float, length: int, count: int) -> None:
    timed = Calls(fake_gpu, count, seconds)
    estimating = min(count, ESTIMATE_CALLS)
    assert clock.seconds(timed.calls, 5, "queued", 2) == pytest.approx([seconds] * 5)
    made = timed.made[1 + estimating :]
    assert len(made) == 7 * length
    assert made[-1] == 4 % count, "whose result is checked"
    assert all((first + 1) % count == second for first, second in pairwise(made)), "in turns"


@pytest.mark.parametrize(("seconds", "length"), [(1.0, 1), (4e-5, 5), (1e-6, MOST_QUEUED // 7)])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_series_is_bursts_without_a_pause(
    fake_gpu: FakeGpu, clock: Clock, seconds: float, length: int, count: int
) -> None:
    timed = Calls(fake_gpu, count, seconds)
    taken, calls = clock.series(timed.calls, 5, 2, 2e-4)
    assert taken == pytest.approx([seconds] * 5)
    assert calls == length
    made = timed.made[1 + min(count, ESTIMATE_CALLS) :]
    assert len(made) == 7 * length
    assert made[-1] == 4 % count, "whose result is checked"
    assert all((first + 1) % count == second for first, second in pairwise(made)), "in turns"


def test_a_series_of_short_calls_waits_behind_one_gate(fake_gpu: FakeGpu, clock: Clock) -> None:
    clock.series(Calls(fake_gpu, 1, 1e-3).calls, 5, 0, 1e-4)
    long_calls = gates(fake_gpu)
    clock.series(Calls(fake_gpu, 1, 1e-6).calls, 5, 0, 1e-4)
    assert gates(fake_gpu) - long_calls == 2, "one for the estimate, and one for all bursts"


def test_short_calls_wait_behind_a_gate(fake_gpu: FakeGpu, clock: Clock) -> None:
    clock.seconds(Calls(fake_gpu, 1, 1e-3).calls, 5, "queued", 0)
    long_calls = gates(fake_gpu)
    clock.seconds(Calls(fake_gpu, 1, 1e-6).calls, 5, "queued", 0)
    assert gates(fake_gpu) - long_calls == 1 + 5, "one for the estimate, and one for each burst"


def test_a_first_call_that_compiles_is_not_taken_for_a_long_one(fake_gpu: FakeGpu, clock: Clock) -> None:
    timed = Calls(fake_gpu, 1, 1e-6)

    def call() -> None:
        fake_gpu.clock += 0.0 if timed.made else 0.5
        timed.calls[0]()

    assert clock.seconds([call], 5, "queued", 0) == pytest.approx([1e-6] * 5)
    assert gates(fake_gpu) > 5, "its bursts wait behind a gate"


def test_a_gate_takes_as_long_as_it_is_told(fake_gpu: FakeGpu, clock: Clock) -> None:
    clock._close_gate(1e-3)
    before = fake_gpu.clock
    clock._close_gate(5e-3)
    assert fake_gpu.clock - before == pytest.approx(5e-3, rel=0.01)


def test_work_before_the_first_sample_and_after_a_pause(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(clock_module.time, "monotonic", lambda: now[0])
    clock = Clock(device())

    def call() -> None:
        made.append(now[0])
        now[0] += 0.01

    made: list[float] = []
    clock.seconds([call], 1, "single", 0)
    assert made[-2] >= 100.0 + clock_module.WARM_UP_SECONDS - 0.02, "the clock is up by then"
    made.clear()
    clock.seconds([call], 1, "single", 0)
    assert len(made) == 2, "it is still up"
    now[0] += 2 * clock_module.PAUSE_SECONDS
    made.clear()
    clock.seconds([call], 1, "single", 0)
    assert len(made) > 10
