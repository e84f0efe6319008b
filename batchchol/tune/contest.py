"""Whether another schedule replaces the one that is used today: both measured in turns, and a margin above noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from statistics import median
from typing import Any

from batchchol.defaults.lookup import Choice, Request, default_choice
from batchchol.defaults.tables import Case
from batchchol.defaults.user import Tuned
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row
from batchchol.tune.tuning import FINAL_SAMPLES, MARGIN
from kernelgen import TARGETS, KernelSpec, Layout, Problem, Schedule

ROUNDS = 4
"""How often each schedule is measured in turns: what differs between the rounds is noise."""

_DIGITS = 4


@dataclass(frozen=True)
class Site:
    """Where it is measured and how: what the user's tables are kept by, and what their entries say of themselves."""

    device: str
    target: str
    arch: str | None
    protocol: str
    threads: int
    copy_bytes_per_second: float
    about: Mapping[str, str | int] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any], about: Mapping[str, Any], threads: int) -> Site:
        """The site whose facts a measurer knows, and the columns of its rows."""
        compiler = str(about.get("compiler") or "").split("|")[0].strip()
        said = {"driver": about.get("driver"), "toolkit": about.get("toolkit") or compiler}
        said |= {"version": about.get("version"), "commit": about.get("commit"), "protocol": facts["protocol"]}
        return cls(
            str(about["device"]),
            facts["target"],
            facts["architecture"],
            facts["protocol"],
            threads,
            about["copy_bytes_per_second"],
            {name: value for name, value in said.items() if value} | {"threads": threads},
        )

    @property
    def gpu(self) -> bool:
        return TARGETS[self.target].gpu

    def today(self, n: int, batch: int, case: Case) -> Choice:
        """What is used now in a case, for an order and a batch."""
        problem, place = Problem(n, case.dtype, math=case.math), (case.layout, case.order or "col", case.chunk)
        return default_choice(Request(problem, self.target, *place, False, batch, self.arch, self.device))

    def point(self, spec: KernelSpec, chunk: int | None, batch: int) -> Point:
        """A kernel on a batch, to be measured."""
        return Point(spec, batch, chunk, self.threads, self.protocol)


@dataclass(frozen=True)
class Contest:
    """The schedule that is used today in a case, for one order and batch, and those that were faster, best first.

    `measured` is how many schedules were tried to find those, of how many `candidates`.
    """

    case: Case
    n: int
    batch: int
    incumbent: Choice
    challengers: tuple[KernelSpec, ...] = ()
    measured: int = 0
    candidates: int = 0

    @property
    def layout(self) -> Layout:
        return Layout(self.case.layout, self.case.chunk, self.case.order or "col")

    def points(self, site: Site) -> list[Point]:
        """The points of a round."""
        specs = dict.fromkeys((self.incumbent.spec, *self.challengers))
        return [site.point(spec, self.case.chunk, self.batch) for spec in specs]

    def held(
        self, measurer: Measurer, site: Site, rounds: int = ROUNDS, samples: int = FINAL_SAMPLES
    ) -> Tuned | None:
        """Measure all in turns and decide; None if none of them could be measured."""
        rows = [measurer.measure(point, samples) for _ in range(rounds) for point in self.points(site)]
        return self.decided(rows, site)

    def decided(self, rows: Iterable[Row], site: Site) -> Tuned | None:
        """Who wins by these measurements: another than today's only if it is faster by more than a margin.

        The margin is 3%, or what the rounds of either differ by, or the spread of the samples where there is one
        round: whichever is the largest.
        """
        runs: dict[KernelSpec, list[Row]] = {}
        for row in rows:
            if row.status == "correct":
                runs.setdefault(row.point.spec, []).append(row)
        times = {spec: median(row.median_seconds for row in found) for spec, found in runs.items()}
        if not times:
            return None
        own = self.incumbent.spec
        others = sorted((spec for spec in times if spec != own), key=lambda spec: times[spec])
        rivals = [spec for spec in (own, *others[:1]) if spec in times]
        margin = max(MARGIN, *(_noise(runs[spec]) for spec in rivals))
        stays = own in times and not (others and times[own] > times[others[0]] * (1 + margin))
        best = own if stays else others[0]
        return self._entry(best, times, margin, site, sum(len(row.seconds) for row in runs[best]))

    def _entry(
        self, best: KernelSpec, times: Mapping[KernelSpec, float], margin: float, site: Site, samples: int
    ) -> Tuned:
        own = self.incumbent.spec
        second = min((spec for spec in times if spec != best), key=lambda spec: times[spec], default=None)
        counted = {"samples": samples, "measured": self.measured, "candidates": self.candidates}

        def ns(spec: KernelSpec | None) -> float | None:
            if spec is None or spec not in times:
                return None
            return float(f"{times[spec] / self.batch * 1e9:.{_DIGITS}g}")

        return Tuned(
            self.case,
            self.n,
            self.batch,
            best.schedule,
            ns(best) or 0.0,
            kept=best == own and self.incumbent.tuned is None,
            incumbent=own.schedule,
            incumbent_ns=ns(own),
            margin=round(margin, 4),
            runner_up=None if second is None else second.schedule,
            runner_up_ns=ns(second),
            about={"date": date.today().isoformat(), **site.about, **counted},
        )


def spec_of(case: Case, n: int, schedule: Schedule, target: str) -> KernelSpec:
    """The kernel of a case with a schedule, out of place, of the lower triangle."""
    return KernelSpec(Problem(n, case.dtype, math=case.math), case.layout, case.order or "col", schedule, target)


def _noise(rows: Sequence[Row]) -> float:
    """What the rounds of a schedule differ by, as a part of the fastest; of one alone the spread of its samples."""
    if len(rows) == 1:
        return rows[0].spread
    medians = [row.median_seconds for row in rows]
    return (max(medians) - min(medians)) / min(medians)
