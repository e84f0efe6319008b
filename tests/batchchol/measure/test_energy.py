"""Joules of calls, by counters that move in steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pytest

from batchchol.backends import Backend, get_backend
from batchchol.backends.rapl import Rapl
from batchchol.batches.batch import Batch
from batchchol.compare.contenders import Contender
from batchchol.compare.spending import repeated
from batchchol.defaults.lookup import default_spec
from batchchol.errors import BatchcholError, ResidualError
from batchchol.measure import energy
from batchchol.measure.energy import Energy, factor_energy, idle_watts, measure_energy
from kernelgen import Layout


@dataclass
class Device:
    """One whose counter is brought up to date every 0.1 s, by a clock that only work and waiting move on."""

    name: ClassVar[str] = "cpu"
    now: float = 0.0
    used: float = 0.0
    shown: float = 0.0
    updates: int = 0
    done: list[str] = field(default_factory=list)

    def spend(self, seconds: float, watts: float, name: str = "") -> None:
        if name:
            self.done.append(name)
        end = self.now + seconds
        while (tick := (self.updates + 1) * 0.1) <= end:
            self.used += (tick - self.now) * watts
            self.now, self.shown, self.updates = tick, self.used, self.updates + 1
        self.used += (end - self.now) * watts
        self.now = end

    def joules(self) -> float:
        return self.shown

    def clock(self) -> float:
        # Looking at it takes time too.
        self.spend(1e-6, 100)
        return self.now


def measured(device: Device, calls: list[Callable[[], None]], seconds: float = 5.0) -> Energy:
    return measure_energy(calls, lambda: None, device.joules, seconds=seconds, clock=device.clock)


@pytest.mark.parametrize(("seconds", "watts"), [(3e-3, 700.0), (1.7e-2, 250.0), (0.31, 400.0)])
def test_joules_of_a_call_are_what_it_uses_within_the_uncertainty(seconds: float, watts: float) -> None:
    device = Device()
    found = measured(device, [partial(device.spend, seconds, watts)])
    assert abs(found.joules - seconds * watts) <= found.uncertainty
    assert found.uncertainty <= found.joules * (0.04 if seconds < 0.1 else 0.1)
    assert found.watts == pytest.approx(watts, rel=0.05)
    assert found.seconds == pytest.approx(seconds, rel=0.05)
    assert 5 <= found.span < 6


def test_calls_go_round_the_buffers_and_the_first_second_does_not_count() -> None:
    device = Device()
    cold = partial(device.spend, 0.02, 900.0, "a")

    def warm(name: str) -> None:
        # It needs less once the clock is up.
        device.spend(0.02, 900.0 if device.now < 1 else 300.0, name)

    found = measured(device, [partial(warm, "a"), partial(warm, "b")])
    assert found.watts == pytest.approx(300, rel=0.01)
    assert cold.args[-1] == "a"
    assert abs(device.done.count("a") - device.done.count("b")) <= 1


def test_idle_power_is_that_without_work() -> None:
    device = Device()
    watts = idle_watts(device.joules, clock=device.clock, sleep=lambda seconds: device.spend(seconds, 110))
    assert watts == pytest.approx(110, rel=0.01)


def test_a_device_without_a_counter_is_refused() -> None:
    with pytest.raises(BatchcholError, match="does not say what energy it uses"):
        measure_energy([lambda: None], lambda: None, lambda: None, seconds=0.01)


def test_a_counter_that_stands_still_is_refused() -> None:
    device = Device()
    with pytest.raises(BatchcholError, match="moved 0 times"):
        measure_energy([partial(device.spend, 0.02, 1)], lambda: None, lambda: 5.0, seconds=1.0, clock=device.clock)


def test_copies_that_restore_inputs_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(energy, "measure_energy", partial(measure_energy, clock=device.clock))
    calls = [partial(device.spend, 3e-3, 600.0)] * 4
    contender = Contender(
        "in place", calls, result=lambda _: NotImplemented, restore=partial(device.spend, 5e-3, 500.0)
    )
    found = repeated(contender, cast(Backend, device), 5.0)
    assert abs(found.joules - 1.8) <= found.uncertainty < 0.5
    assert found.seconds == pytest.approx(3e-3, rel=0.1)


def test_new_results_are_freed_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(energy, "measure_energy", partial(measure_energy, clock=device.clock))
    contender = Contender(
        "new results",
        [partial(device.spend, 5e-3, 200.0, "call")],
        result=lambda _: NotImplemented,
        forget=partial(device.spend, 0.0, 0.0, "freed"),
    )
    repeated(contender, cast(Backend, device), 1.0)
    assert device.done[:4] == ["call", "freed"] * 2


def test_rapl_adds_packages_and_goes_on_where_a_counter_is_full(tmp_path: Path) -> None:
    def package(name: str, microjoules: int) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "energy_uj").write_text(f"{microjoules}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("10000000\n")

    package("intel-rapl:0", 9_000_000)
    package("intel-rapl:1", 1_000_000)
    package("intel-rapl:0:0", 5_000_000)
    rapl = Rapl(tmp_path)
    assert rapl.joules() == 10
    package("intel-rapl:0", 500_000)
    assert rapl.joules() == 11.5
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert rapl.joules() is None
    assert Rapl(tmp_path / "none").joules() is None


def test_a_factorization_is_checked_after_its_joules(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("cpu")
    # A CPU of 50 W.
    monkeypatch.setattr(type(backend), "joules", lambda _: time.perf_counter() * 50)
    batch = backend.empty(4, 64, Layout.chunked(16))
    backend.fill(batch, "diagonally_dominant")
    spec = default_spec(4, target=backend.target, chunk=16)
    found = factor_energy(backend, spec, batch, seconds=0.05)
    assert found.watts == pytest.approx(50, rel=0.05)
    assert found.joules == pytest.approx(50 * found.seconds, rel=0.05)
    with pytest.raises(ResidualError):
        factor_energy(backend, spec, Batch(np.full_like(batch.data, -1.0), 4, 64, batch.layout), seconds=0.01)
