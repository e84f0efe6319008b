"""The schedule that uses the fewest joules, of the fastest of a case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from batchchol.defaults.lookup import default_choice
from batchchol.measure.energy import Energy
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row
from batchchol.tune.choosing.contest import Contest, Site
from batchchol.tune.choosing.least_energy import held
from kernelgen import KernelSpec, Layout, Problem, ThreadSchedule

N, BATCH = 20, 1000
SITE = Site("a fake", "cuda", "sm_90", "queued", 1, 1e15, {"driver": "580"})
REQUEST = SITE.request(Problem(N), BATCH).on(Layout.chunked(32))
INCUMBENT = default_choice(REQUEST)


def challenger(nb: int) -> KernelSpec:
    return KernelSpec(Problem(N), "chunked", "col", ThreadSchedule(nb, unroll="full"), "cuda")


@dataclass
class Meter:
    """Measures challengers: all take 1 µs; what they use is given by tile size, the current one uses 10 µJ."""

    joules: dict[int, float]
    uncertainty: float = 1e-7
    measured: list[Point] = field(default_factory=list)

    def measure(self, point: Point, samples: int) -> Row:
        return Row.timed(point, (1e-6,) * samples)

    def energy(self, point: Point, seconds: float) -> Energy | None:
        assert seconds == 5
        self.measured.append(point)
        used = 1e-5 if point.spec == INCUMBENT.spec else self.joules[point.spec.schedule.nb]  # type: ignore[attr-defined]
        return Energy(used, self.uncertainty, 500.0, 1e-6, 5.0) if used else None


def contest(*challengers: int) -> Contest:
    return Contest(REQUEST, INCUMBENT, tuple(map(challenger, challengers)), 30, 40)


@pytest.mark.parametrize(
    ("joules", "uncertainty", "chosen"),
    [
        ({2: 8e-6, 4: 9e-6, 5: 2e-5}, 1e-7, 2),
        # Within what the counter cannot tell apart the current one stays.
        ({2: 9.9e-6, 4: 9.95e-6, 5: 2e-5}, 1e-7, None),
        ({2: 8e-6, 4: 9e-6, 5: 2e-5}, 2e-6, None),
        # A kernel that failed meanwhile is no rival.
        ({2: 0.0, 4: 9e-6, 5: 2e-5}, 1e-7, 4),
    ],
)
def test_the_fewest_joules_win_past_what_the_counter_tells(
    joules: dict[int, float], uncertainty: float, chosen: int | None
) -> None:
    meter = Meter(joules, uncertainty)
    entry = held(contest(2, 4, 5), cast(Measurer, meter), SITE, 20)
    assert entry is not None
    assert entry.schedule == (INCUMBENT.spec if chosen is None else challenger(chosen)).schedule
    used = 1e-5 if chosen is None else joules[chosen]
    assert entry.about["nanojoules"] == round(used / BATCH * 1e9)
    assert (entry.about["objective"], entry.about["incumbent_nanojoules"]) == ("energy", 10)
    assert entry.about["finalists"] == 4 - (not joules[2])


def test_no_more_than_the_finalists_are_measured() -> None:
    meter = Meter({2: 8e-6, 4: 1e-6, 5: 1e-6})
    entry = held(contest(2, 4, 5), cast(Measurer, meter), SITE, 2)
    assert entry is not None
    assert entry.schedule == challenger(2).schedule
    assert len(meter.measured) == 2
