"""Entrants of one case, each at its best, timed in turn and checked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, product

import numpy as np

from batchchol.backends import Backend
from batchchol.compare.contenders import QUEUED, WAITING, BaseArena, Contender, Entrant
from batchchol.compare.cpu import CpuVenue
from batchchol.compare.gpu import GpuVenue
from batchchol.compare.rows import Row
from batchchol.compare.spending import repeated
from batchchol.errors import BatchcholError, DeviceLost, ResidualError
from batchchol.measure.stopwatch import Timing
from batchchol.measure.timing import Sample, busy_warning, drift
from batchchol.operations.roofline import roofline_seconds

# The ways of one entrant are compared by this many samples; the fastest is measured.
RIVAL_SAMPLES = 5

Report = Callable[[str], None]
Venue = CpuVenue | GpuVenue


@dataclass(frozen=True)
class Run:
    """What is the same for every case, and what was found out on the way.

    Attributes
    ----------
    bound : str
        The widest accuracy class of all that take part: what the peers are held to.
    arena : callable
        Makes an arena of the operation, of the backend, a recipe, n, batch, dtype and math.
    own : callable
        The library's entrants at an n and batch.
    about, machine
        Where a number comes from.
    absent : dict of str to str
        What did not take part, and why.
    joules : float
        Seconds that calls are repeated to see what they use; 0 leaves it out.
    idle_watts : float
        The power of the device with nothing to do.
    approved : set of tuple
        What got its small batch right.
    """

    backend: Backend
    venue: Venue
    dtype: str
    samples: int
    bound: str
    protocols: Sequence[str]
    arena: Callable[..., BaseArena]
    own: Callable[[int, int], Iterable[Entrant]]
    peers: Sequence[Entrant]
    report: Report
    about: Mapping[str, str]
    machine: str
    absent: dict[str, str]
    joules: float = 0.0
    idle_watts: float = math.nan
    approved: set[tuple[str, str, int, int]] = field(default_factory=set)

    def label(self, arena: BaseArena) -> str:
        """What messages call a case."""
        return self.venue.case.format(n=arena.n, batch=arena.batch, threads=arena.threads)


class Heat:
    """Entrants of a case that are timed in turn."""

    def __init__(self, run: Run, small: BaseArena, arena: BaseArena, size: str) -> None:
        self._run, self._small, self._arena, self._size = run, small, arena, size
        self._ready: dict[str, tuple[Entrant, Contender]] = {}
        self._taken: dict[tuple[str, str], list[tuple[Timing, float]]] = defaultdict(list)

    def rows(self, entrants: Iterable[Entrant]) -> list[Row]:
        """The rows of those that got everything right."""
        for entrant in entrants:
            with self._tolerating(entrant):
                self._ready[entrant.name] = entrant, self._fastest(entrant)
        for protocol, share in product(self._run.protocols, self._shares(self._run.samples)):
            for entrant, contender in [*self._ready.values()]:
                if protocol in contender.protocols:
                    with self._tolerating(entrant):
                        timing = self._timed(entrant, contender, protocol, share)
                        ratio = self._verified(self._arena, entrant, contender, timing.last)
                        self._taken[entrant.name, protocol].append((timing, ratio))
        rows = [
            self._row(*self._ready[name], protocol, turns)
            for (name, protocol), turns in self._taken.items()
            if name in self._ready
        ]
        self._tell(rows)
        rows = [self._with_joules(row) for row in rows] if self._run.joules else rows
        numpy = next((row.seconds for row in rows if row.contender == "numpy"), math.nan)
        return [replace(row, times_numpy=numpy / row.seconds) for row in rows]

    @contextmanager
    def _tolerating(self, entrant: Entrant) -> Iterator[None]:
        """Leave an entrant out that fails, and say why."""
        try:
            yield
        except DeviceLost:
            raise
        except entrant.tolerated as error:
            reason, label = " ".join(str(error).split()), self._run.label(self._arena)
            self._ready.pop(entrant.name, None)
            self._run.absent[f"{entrant.name} at {label}"] = reason
            self._run.report(f"{label}: {entrant.name} left out: {reason}")

    def _fastest(self, entrant: Entrant) -> Contender:
        """The fastest of an entrant's ways, each of which gets the small batch right."""
        trial = self._run.venue.trial(self._arena)
        ways = entrant.make(trial)
        self._approve(entrant, ways)
        fastest = 0
        if len(ways) > 1:
            self._run.report(f"{self._run.label(self._arena)}: {entrant.name}: timing {len(ways)} ways")
            fastest = int(np.argmin(self._medians(entrant, ways)))
        chosen = ways[fastest] if trial is self._arena else entrant.make(self._arena)[fastest]
        if not {*chosen.protocols} & {*self._run.protocols}:
            raise BatchcholError(f"it can be timed by {', '.join(chosen.protocols)} alone")
        return chosen

    def _approve(self, entrant: Entrant, ways: Iterable[Contender]) -> None:
        names = {(entrant.name, way.spec, self._small.n, self._small.threads) for way in ways}
        if names <= self._run.approved:
            return
        for way in entrant.make(self._small):
            if way.restore is not None:
                way.restore()
            with entrant.limit(self._small.threads):
                way.calls[0]()
            self._verified(self._small, entrant, way, 0)
        self._run.approved.update(names)

    def _medians(self, entrant: Entrant, ways: Sequence[Contender]) -> list[float]:
        seconds: list[list[float]] = [[] for _ in ways]
        protocol = next(each for each in self._run.backend.protocols if each in ways[0].protocols)
        for share, (way, taken) in product(self._shares(RIVAL_SAMPLES), zip(ways, seconds, strict=True)):
            taken.extend(self._timed(entrant, way, protocol, share).seconds)
        return [float(np.median(taken)) for taken in seconds]

    def _timed(self, entrant: Entrant, contender: Contender, protocol: str, samples: int) -> Timing:
        if contender.poison is not None:
            contender.poison()
        with entrant.limit(self._arena.threads):
            return self._run.venue.measure(contender, samples, protocol)

    def _shares(self, samples: int) -> list[int]:
        """The samples of each round."""
        rounds = min(self._run.venue.rounds, samples)
        return [len(share) for share in np.array_split(range(samples), rounds)]

    def _verified(self, arena: BaseArena, entrant: Entrant, contender: Contender, call: int) -> float:
        try:
            return arena.verify(contender, call)
        except ResidualError as error:
            raise ResidualError(f"{entrant.name} ({contender.spec}, {entrant.version}): {error}") from error

    def _row(
        self, entrant: Entrant, contender: Contender, protocol: str, turns: Sequence[tuple[Timing, float]]
    ) -> Row:
        run, arena = self._run, self._arena
        seconds = tuple(chain.from_iterable(timing.seconds for timing, _ in turns))
        sample = Sample(seconds, max(ratio for _, ratio in turns))
        layout = contender.result(0).layout
        ceilings, state = run.backend.ceilings(run.dtype, arena.threads), run.backend.conditions()
        return Row(
            contender=entrant.name,
            spec=contender.spec,
            op=arena.op,
            n=arena.n,
            nrhs=arena.nrhs,
            batch=arena.batch,
            dtype=run.dtype,
            protocol=run.venue.protocols[protocol],
            samples=len(seconds),
            seconds=sample.median,
            spread=sample.spread,
            floor_seconds=run.venue.floor(protocol, arena.threads),
            roofline_seconds=roofline_seconds(arena.n, arena.batch, layout, ceilings, arena.nrhs, arena.op),
            ratio=sample.ratio,
            date=run.about["date"],
            machine=run.machine,
            commit=run.about["commit"],
            version=entrant.version,
            threads=arena.threads,
            size=self._size,
            math=contender.math or arena.math,
            layout=str(layout),
            calls=turns[0][0].calls,
            timing=QUEUED if "queued" in contender.protocols else WAITING,
            copy_bytes_per_second=ceilings.copy_bytes_per_second,
            gpu=run.about.get("gpu", ""),
            driver=run.about.get("driver", ""),
            toolkit=run.about.get("toolkit", ""),
            gpu_clock_mhz=float(state.get("gpu_clock_mhz", 0)),
            temperature_c=float(state.get("temperature_c", 0)),
            throttle=str(state.get("throttle", "")),
        )

    def _with_joules(self, row: Row) -> Row:
        """The row with the energy of a call, of the first protocol alone: repeated calls are queued ones."""
        run, (entrant, contender) = self._run, self._ready[row.contender]
        if row.protocol != run.venue.protocols[contender.protocols[0]]:
            return row
        with entrant.limit(self._arena.threads):
            spent = repeated(contender, run.backend, run.joules)
        run.report(
            f"{run.label(self._arena)}: {row.contender:24} {spent.joules / row.batch * 1e6:10,.4g} µJ a matrix"
        )
        return replace(
            row,
            joules=spent.joules,
            joules_uncertainty=spent.uncertainty,
            watts=spent.watts,
            idle_watts=run.idle_watts,
        )

    def _tell(self, rows: Iterable[Row]) -> None:
        label = self._run.label(self._arena)
        for row in rows:
            self._run.report(f"{label}: {row.contender:24} {row.gflops:10,.1f} GFLOP/s {row.protocol}, {row.spec}")
        taken = ([second for timing, _ in turns for second in timing.seconds] for turns in self._taken.values())
        if warning := busy_warning(map(drift, taken)):
            self._run.report(f"{label}: {warning}")
