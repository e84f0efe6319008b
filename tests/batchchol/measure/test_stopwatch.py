"""The stopwatch: bursts that fit buffers, gate and budget; inputs that are made anew outside the clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from batchchol.backends.cuda.device import device
from batchchol.backends.cuda.measuring import clock as clock_module
from batchchol.measure import stopwatch as stopwatch_module
from batchchol.measure.stopwatch import BUDGET_SECONDS, FEWEST_SAMPLES, WARM_UP_SAMPLES, Stopwatch

from ...fakes.pycuda import FakeGpu


class Host:
    """The host's clock: it goes on when a call is launched, and not with the load of the machine."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter


class Calls:
    """Calls on buffers that take the fake GPU some time, and the host some; they overwrite their buffer."""

    def __init__(
        self, gpu: FakeGpu, count: int, seconds: float, host: Host | None = None, host_seconds: float = 0.0
    ) -> None:
        self.gpu, self.seconds, self.host, self.host_seconds = gpu, seconds, host or Host(), host_seconds
        self.made = list[int]()
        self.fresh = [True] * count
        self.calls: list[Callable[[], None]] = [lambda place=place: self.make(place) for place in range(count)]

    def make(self, place: int) -> None:
        self.made.append(place)
        self.fresh[place] = False
        self.gpu.clock += self.seconds
        self.host.now += self.host_seconds

    def make_in_place(self, place: int) -> None:
        assert self.fresh[place], "what was overwritten is no input"
        self.make(place)

    def restore(self) -> None:
        self.fresh = [True] * len(self.fresh)
        # Copying takes long: were it inside the clock, it would show.
        self.gpu.clock += 1.0


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    for module in (clock_module, stopwatch_module):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def stopwatch(fake_gpu: FakeGpu, host: Host, monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    monkeypatch.setattr(clock_module, "WARM_UP_SECONDS", 0.0)
    return Stopwatch(device())


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("protocol", ["queued", "single"])
def test_each_call_takes_its_time_and_the_last_one_is_known(
    fake_gpu: FakeGpu, stopwatch: Stopwatch, count: int, protocol: str
) -> None:
    timed = Calls(fake_gpu, count, 1e-4)
    timing = stopwatch.measure(timed.calls, 6, protocol)
    assert timing.seconds == pytest.approx([1e-4] * 6)
    assert timing.calls == (20 if protocol == "queued" else 1)
    assert timed.made[-1] == timing.last


@pytest.mark.parametrize("protocol", ["queued", "single"])
@pytest.mark.parametrize("count", [1, 3, 50])
def test_overwritten_inputs_are_restored_outside_the_clock(
    fake_gpu: FakeGpu, stopwatch: Stopwatch, count: int, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bringing the clock up is no measurement: there factors may be factored.
    monkeypatch.setattr(Stopwatch, "_bring_up", lambda self, calls: None)
    timed = Calls(fake_gpu, count, 1e-4)
    in_place = [lambda place=place: timed.make_in_place(place) for place in range(count)]
    timing = stopwatch.measure(in_place, 6, protocol, restore=timed.restore)
    assert timing.seconds == pytest.approx([1e-4] * 6)
    assert timing.calls == (min(count, 20) if protocol == "queued" else 1)
    assert timed.made[-1] == timing.last == timing.calls - 1


def test_no_sample_begins_before_its_inputs_are_there(
    fake_gpu: FakeGpu, stopwatch: Stopwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary: list[str] = []
    timed = Calls(fake_gpu, 2, 1e-4)
    calls = [lambda place=place: (diary.append("call"), timed.make(place)) for place in range(2)]
    monkeypatch.setattr(stopwatch._gpu, "synchronize", lambda: diary.append("wait"))
    stopwatch.measure(calls, 3, "single", restore=lambda: diary.append("restore"))
    samples = diary[-3 * (WARM_UP_SAMPLES + 3) :]
    assert samples == ["restore", "wait", "call"] * (WARM_UP_SAMPLES + 3)


def test_a_burst_is_no_longer_than_it_is_allowed_to_be(fake_gpu: FakeGpu, stopwatch: Stopwatch) -> None:
    timed = Calls(fake_gpu, 4, 1e-5)
    assert stopwatch.measure(timed.calls, 5, "queued", most=64).calls == 64


def test_who_takes_long_has_fewer_samples_but_some(fake_gpu: FakeGpu, stopwatch: Stopwatch) -> None:
    quick = stopwatch.measure(Calls(fake_gpu, 2, BUDGET_SECONDS / 10.5).calls, 20, "queued")
    assert (len(quick.seconds), quick.calls) == (10, 1)
    timed = Calls(fake_gpu, 2, 1.0)
    slow = stopwatch.measure(timed.calls, 20, "queued")
    assert len(slow.seconds) == FEWEST_SAMPLES
    # The first, those that are timed to know how long they take, and the samples.
    assert len(timed.made) == 1 + 2 * 2 + WARM_UP_SAMPLES + FEWEST_SAMPLES
    few = stopwatch.measure(Calls(fake_gpu, 2, 1.0).calls, 2, "queued")
    assert len(few.seconds) == 2


def test_calls_that_are_launched_slowly_wait_behind_a_gate_as_long_as_that_takes(
    fake_gpu: FakeGpu, stopwatch: Stopwatch, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[float] = []
    monkeypatch.setattr(stopwatch, "_close_gate", closed.append)
    timed = Calls(fake_gpu, 4, 1e-6, host, host_seconds=1e-3)
    timing = stopwatch.measure(timed.calls, 3, "queued")
    gates = closed[1:]
    assert len(gates) == WARM_UP_SAMPLES + 3, "one for the estimate, and one for each burst"
    assert all(timing.calls * 1e-3 < gate <= 0.02 * 1.5 for gate in gates)
    assert timing.calls >= 4
    closed.clear()
    stopwatch.measure(Calls(fake_gpu, 4, 1e-2).calls, 3, "queued")
    assert len(closed) == 1, "what takes the GPU longer than the host needs none"
    closed.clear()
    stopwatch.measure(timed.calls, 3, "single")
    assert len(closed) == 1
