"""Whether another schedule or layout replaces the current one: only if faster by more than a margin above noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from statistics import median
from types import MappingProxyType
from typing import Any

from batchchol.defaults.entries import Placed, Tuned
from batchchol.defaults.lookup import Choice, array_layout, default_layout, tuned_placement
from batchchol.defaults.request import Request
from batchchol.defaults.tables import Case
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.measure.row import Row, toolkit_of
from batchchol.measure.timing import disagreement
from batchchol.tune.choosing.make_tables import packed_seconds
from batchchol.tune.choosing.winners import FINAL_SAMPLES, MARGIN, grouped, ns, rounded
from kernelgen import TARGETS, KernelSpec, Layout, Problem, Schedule
from kernelgen.problem import MATHS

ROUNDS = 4
"""How many turns each schedule is measured in: what differs between the rounds is noise."""


@dataclass(frozen=True)
class Site:
    """Where and how it is measured: the keys of the user's tables, and what their entries say of themselves."""

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
        said = {"driver": about.get("driver"), "toolkit": toolkit_of(about)}
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

    def request(self, problem: Problem, batch: int) -> Request:
        """What the library is asked for here, for a problem and a batch."""
        return Request(problem, self.target, batch=batch, arch=self.arch, device=self.device)

    def point(self, spec: KernelSpec, chunk: int | None, batch: int) -> Point:
        """A kernel on a batch, to be measured."""
        return Point(spec, batch, chunk, self.threads, self.protocol)


@dataclass(frozen=True)
class Contest:
    """The current schedule of a request, and those that were faster, best first.

    `measured` is how many schedules were tried to find those, of how many `candidates`.
    """

    request: Request
    incumbent: Choice
    challengers: tuple[KernelSpec, ...] = ()
    measured: int = 0
    candidates: int = 0

    def points(self, site: Site) -> list[Point]:
        """The points of a round."""
        specs = dict.fromkeys((self.incumbent.spec, *self.challengers))
        return [site.point(spec, self.request.chunk, self.request.size) for spec in specs]

    def held(
        self, measurer: Measurer, site: Site, rounds: int = ROUNDS, samples: int = FINAL_SAMPLES
    ) -> Tuned | None:
        """Measure all in turn, several rounds, and decide; None if none of them could be measured."""
        rows = [measurer.measure(point, samples) for _ in range(rounds) for point in self.points(site)]
        return self.decided(rows, site)

    def decided(self, rows: Iterable[Row], site: Site) -> Tuned | None:
        """The winner by these measurements: another than the current one only if it is faster by more than a margin.

        The margin is 3%, or what the rounds of either differ by, or the spread of the samples where there is one
        round: whichever is the largest.
        """
        runs = grouped((row for row in rows if row.correct), lambda row: row.spec)
        times = {spec: median(row.median_seconds for row in found) for spec, found in runs.items()}
        if not times:
            return None
        own = self.incumbent.spec
        others = sorted((spec for spec in times if spec != own), key=lambda spec: times[spec])
        rivals = [spec for spec in (own, *others[:1]) if spec in times]
        margin = max(MARGIN, *(_noise(runs[spec]) for spec in rivals))
        stays = own in times and not (others and times[own] > times[others[0]] * (1 + margin))
        return self.entry(own if stays else others[0], runs, site, margin)

    def entry(
        self,
        best: KernelSpec,
        runs: Mapping[KernelSpec, Sequence[Row]],
        site: Site,
        margin: float,
        about: Mapping[str, str | int] = MappingProxyType({}),
    ) -> Tuned:
        """The winner `best` of the measurements `runs`, by whatever it was chosen."""
        own = self.incumbent.spec
        times = {spec: median(row.median_seconds for row in found) for spec, found in runs.items()}
        second = min((spec for spec in times if spec != best), key=lambda spec: times[spec], default=None)
        samples = sum(row.samples for row in runs[best])
        counted = {"samples": samples, "measured": self.measured, "candidates": self.candidates}
        taken = {spec: ns(seconds, self.request.size) for spec, seconds in times.items()}
        return Tuned(
            self.request.case,
            self.request.problem.n,
            self.request.size,
            best.schedule,
            taken[best],
            kept=best == own and self.incumbent.tuned is None,
            incumbent=own.schedule,
            incumbent_ns=taken.get(own),
            margin=round(margin, 4),
            runner_up=None if second is None else second.schedule,
            runner_up_ns=None if second is None else taken[second],
            about={"date": date.today().isoformat(), **site.about, **counted, **about},
        )


def spec_of(case: Case, n: int, schedule: Schedule, target: str) -> KernelSpec:
    """The kernel of a case with a schedule, out of place, of the lower triangle."""
    return KernelSpec(
        Problem(n, case.dtype, op=case.op, math=case.math), case.layout, case.order or "col", schedule, target
    )


def _noise(rows: Sequence[Row]) -> float:
    """By how much the rounds of a schedule differ, as a share of the fastest; of one round, its samples' spread."""
    if len(rows) == 1:
        return rows[0].spread
    medians = [row.median_seconds for row in rows]
    return disagreement(min(medians), max(medians))


def placements(entries: Iterable[Tuned], site: Site, floor_seconds: float) -> list[Placed]:
    """The layouts of batches and arrays that the entries of one session support.

    The current ones stay unless another is faster by more than the margin of either. A CPU has one layout for each.
    Only the default math counts, and only factorizations of triangles.

    Parameters
    ----------
    entries : iterable of Tuned
        Of any cases, orders and batches.
    site : Site
        The device; its rate of copies, and a launch of `floor_seconds` each, is what packing and unpacking cost.
    """
    usual = [each for each in entries if each.case.math == MATHS[0] and each.case.op == "potrf"] if site.gpu else []
    places = grouped(usual, lambda entry: (entry.case.dtype, entry.n, entry.batch))
    return [placed for where in sorted(places) for placed in _placed(where, places[where], site, floor_seconds)]


def _placed(where: tuple[str, int, int], entries: Sequence[Tuned], site: Site, floor: float) -> Iterator[Placed]:
    """Placements of a dtype, an order and a batch; none where the current layout was not measured, or no other."""
    dtype, n, batch = where
    at = site.request(Problem(n, dtype), batch).where
    chunks = {Layout.chunked(entry.case.chunk): entry for entry in entries if entry.case.chunk}
    rows = {Layout.canonical("row"): e for e in entries if (e.case.layout, e.case.order) == ("canonical", "row")}
    packed = {layout: entry.ns for layout, entry in chunks.items()}
    arrays = {
        layout: packed_seconds(taken * batch / 1e9, n, dtype, batch, site.copy_bytes_per_second, floor) / batch * 1e9
        for layout, taken in packed.items()
    } | {layout: entry.ns for layout, entry in rows.items()}
    for section, current, times in (
        ("layouts", default_layout(n, batch=batch, **at), packed),
        ("arrays", array_layout(n, batch, **at), arrays),
    ):
        if current not in times or len(times) < 2:
            continue
        measured = chunks | rows
        fastest = min(times, key=times.__getitem__)
        margin = max(measured[current].margin, measured[fastest].margin)
        best = fastest if times[current] > times[fastest] * (1 + margin) else current
        users = tuned_placement(section, n, batch, **at)
        yield Placed(
            section,
            dtype,
            n,
            batch,
            best,
            rounded(times[best]),
            kept=best == current and users is None,
            incumbent=current,
            incumbent_ns=rounded(times[current]),
            margin=margin,
            about=measured[best].about,
        )
