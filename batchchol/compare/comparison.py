"""The library against its peers, side by side in one run: same data, same clock, same rules, results checked."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path

import numpy as np

from batchchol.backends import Backend
from batchchol.batches.sizes import matrices
from batchchol.compare.contenders import QUEUED, WAITING, Arena, Contender, Entrant
from batchchol.compare.cpu import CpuVenue
from batchchol.compare.gpu import GpuVenue
from batchchol.compare.known_kernels import Known
from batchchol.compare.peers import Peer
from batchchol.compare.rows import Row, read_rows, write_csv
from batchchol.errors import BatchcholError, CompilerNotFound, DataFileError, DeviceLost, ResidualError
from batchchol.measure.machine import stable_name
from batchchol.measure.provenance import about
from batchchol.measure.stopwatch import Timing
from batchchol.measure.timing import Sample, busy_warning, drift
from batchchol.operations.roofline import roofline_seconds
from kernelgen import MAX_N

TIMED_RECIPE = "diagonally_dominant"
# Nobody is timed who does not get these right too, in a batch whose last chunk is not full.
CHECKED_RECIPE, CHECKED_BATCH = "wishart", 333
# The ways of one entrant are compared by this many samples; the fastest is measured.
RIVAL_SAMPLES = 5
NO_PEERS = "--peers: none of them can be used here, see above: install one, or name others"

Report = Callable[[str], None]


Venue = CpuVenue | GpuVenue


@dataclass(frozen=True)
class Outcome:
    """The rows of the cases asked for, and who did not take part, with the reason."""

    rows: tuple[Row, ...]
    absent: dict[str, str]


@dataclass(frozen=True)
class Run:
    """What is the same for every case, and what was found out on the way."""

    backend: Backend
    venue: Venue
    dtype: str
    samples: int
    maths: Sequence[str]
    protocols: Sequence[str]
    peers: Sequence[Peer]
    known: Sequence[Known]
    report: Report
    about: Mapping[str, str]
    machine: str
    absent: dict[str, str]
    approved: set[tuple[str, str, int, int]] = field(default_factory=set)

    @property
    def bound(self) -> str:
        """The widest accuracy class of all that take part: what the peers are held to."""
        return "fast" if "fast" in self.maths else "ieee"

    def label(self, arena: Arena) -> str:
        """What messages call a case."""
        return self.venue.label(arena.n, arena.batch, arena.threads)

    def entrants(self, n: int, batch: int) -> list[Entrant]:
        """The library's, then the peers."""
        own = self.venue.entrants(n, batch, self.dtype, self.maths, self.known, self.absent)
        peers = (Entrant(peer.name, peer.survey().detail, peer.contenders, limit=peer.limit) for peer in self.peers)
        return [*own, *peers]


def to_stderr(line: str) -> None:
    """Report progress where it does not mix with results."""
    print(line, file=sys.stderr, flush=True)


def compare(
    backend: Backend,
    peers: Iterable[Peer],
    *,
    ns: Iterable[int] | None = None,
    sizes: Iterable[str] | None = None,
    threads: Iterable[int] | None = None,
    samples: int = 20,
    dtype: str = "float32",
    maths: Sequence[str] | None = None,
    protocols: Sequence[str] | None = None,
    known: Sequence[Known] = (),
    required: bool = False,
    out: Path | None = None,
    report: Report = to_stderr,
) -> Outcome:
    """Time the library and its peers in every case, by every protocol.

    Parameters
    ----------
    ns : iterable of int, optional
    sizes : iterable of str, optional
        Batches: matrices, or as many as fill an amount of memory such as "2GiB".
    threads : iterable of int, optional
        Numbers of the host's threads, by default one and all that the backend uses.
    samples : int
        Timed calls, or bursts, of every contender; on a GPU fewer, but at least 5, of those that take very long.
    dtype : {"float32", "float64"}
    maths : sequence of {"fast", "ieee"}, optional
        Accuracy classes of the library's kernels.
    protocols : sequence of str, optional
        By default all of the backend's.
    known : sequence of Known
        GPU kernels that are known to be good, besides those of the tables of defaults.
    required : bool
        Whether it is an error that none of the peers is there.
    out : Path, optional
        A CSV file that is written on the way. What it holds already, measured on this machine with these versions, is
        not measured again.
    report : callable
        Gets a line at every step.

    Raises
    ------
    ValueError
        If an n, the threads or the samples are out of range.
    ResidualError
        If the library's own result is wrong.
    BatchcholError
        If no peer is there that is required, memory does not suffice, `out` cannot be read or written, or the GPU
        cannot be used any more.
    """
    venue: Venue = GpuVenue(backend) if backend.name == "cuda" else CpuVenue(backend)
    orders, asked = tuple(ns or venue.orders), tuple(sizes or venue.sizes)
    counts = tuple(sorted({1, backend.threads}) if threads is None else threads)
    _require("n", orders, MAX_N)
    _require("threads", counts, backend.threads)
    if samples < 1:
        raise ValueError(f"samples: got {samples}, expected at least 1")
    absent: dict[str, str] = {}
    run = Run(
        backend,
        venue,
        dtype,
        samples,
        tuple(maths or venue.maths),
        tuple(protocols or backend.protocols),
        tuple(_installed(peers, absent, report)),
        known,
        report,
        about(backend),
        stable_name(backend.device()),
        absent,
    )
    if required and not run.peers:
        raise BatchcholError(NO_PEERS)
    kept = [] if out is None else _read(out, run)
    _prepare(run, orders, asked)
    rows = list[Row]()
    for n, size in product(orders, asked):
        for found in _sized(run, n, size, counts, kept):
            rows += found
            measured = {row.point for row in found}
            kept = [row for row in kept if row.point not in measured] + found
            if out is not None:
                write_csv(out, kept)
    return Outcome(tuple(rows), absent)


def _require(what: str, values: Iterable[int], most: int) -> None:
    for value in values:
        if not 1 <= value <= most:
            raise ValueError(f"{what}: got {value}, expected 1 to {most}")


def _installed(peers: Iterable[Peer], absent: dict[str, str], report: Report) -> Iterator[Peer]:
    for peer in peers:
        found = peer.survey()
        if found.found:
            yield peer
        else:
            absent[peer.name] = f"{found.detail}; {found.hint}"
            report(f"{peer.name} is absent: {absent[peer.name]}")


def _read(out: Path, run: Run) -> list[Row]:
    kept = read_rows(out)
    if kept and kept[0].on_gpu != (run.backend.name == "cuda"):
        place = "a GPU" if kept[0].on_gpu else "a CPU"
        raise DataFileError(out, "rows", f"it is a comparison on {place}: choose another file, or remove this one")
    return kept


def _prepare(run: Run, orders: Sequence[int], sizes: Sequence[str]) -> None:
    """Compile everything ahead, in parallel; what fails is found again, in words, when it is its turn."""
    for peer in run.peers:
        if peer.prepare is not None:
            run.report(f"{peer.name}: preparing")
            peer.prepare(orders, run.dtype)
    cases = ((n, matrices(size, n, run.dtype)) for n, size in product(orders, sizes))
    specs = dict.fromkeys(spec for case in cases for entrant in run.entrants(*case) for spec in entrant.specs)
    run.report(f"compiling {len(specs)} kernels")
    with suppress(CompilerNotFound):
        run.backend.build(list(specs))


def _sized(run: Run, n: int, size: str, counts: Sequence[int], kept: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows at one n and batch, with every number of threads: those that are measured together at a time."""
    batch = matrices(size, n, run.dtype)
    small = Arena(run.backend, CHECKED_RECIPE, n, CHECKED_BATCH, run.dtype, run.bound, cold=False)
    arena = Arena(run.backend, TIMED_RECIPE, n, batch, run.dtype, run.bound)
    for threads in counts:
        small, arena = small.on(threads), arena.on(threads)
        entrants = run.entrants(n, batch)
        for heat in [entrants] if run.venue.rounds > 1 else [[each] for each in entrants]:
            if old := _finished(run, heat, arena, size, kept):
                run.report(f"{run.label(arena)}: {', '.join(each.name for each in heat)}: there already")
                yield old
            else:
                yield _Heat(run, small, arena, size).rows(heat)


def _finished(run: Run, heat: Iterable[Entrant], arena: Arena, size: str, kept: Iterable[Row]) -> list[Row]:
    """The rows of entrants that an earlier run of the same code on this machine measured; none if any is missing.

    A changed checkout never counts as the same code.
    """
    commit, toolkit = run.about["commit"], run.about.get("toolkit", "")
    asked = (arena.n, arena.batch, run.dtype, arena.threads, run.machine, commit, toolkit)
    same = [
        row
        for row in kept
        if (row.n, row.batch, row.dtype, row.threads, row.machine, row.commit, row.toolkit) == asked
        and row.size in ("", size)
        and (run.venue.fewer_samples or row.samples == run.samples)
    ]
    found = [_rows_of(run, entrant, same) for entrant in heat]
    return [] if commit.endswith("-dirty") or not all(found) else list(chain.from_iterable(found))


def _rows_of(run: Run, entrant: Entrant, same: Iterable[Row]) -> list[Row]:
    """An entrant's, if they are there for each protocol."""
    specs, names = {spec.name for spec in entrant.specs}, run.venue.protocols
    rows = [
        row
        for row in same
        if (row.contender, row.version) == (entrant.name, entrant.version)
        and (not specs or row.spec in specs)
        and row.protocol in {names[protocol] for protocol in run.protocols}
    ]
    waits = any(row.timing == WAITING for row in rows)
    wanted = {names[protocol] for protocol in run.protocols if protocol == "single" or not waits}
    return rows if wanted == {row.protocol for row in rows} else []


class _Heat:
    """Entrants of a case that are timed in turns."""

    def __init__(self, run: Run, small: Arena, arena: Arena, size: str) -> None:
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
        """The fastest of an entrant's ways, each of which has got the small batch right."""
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
        with entrant.limit(self._arena.threads):
            return self._run.venue.measure(contender, samples, protocol)

    def _shares(self, samples: int) -> list[int]:
        """The samples of each round."""
        rounds = min(self._run.venue.rounds, samples)
        return [samples * (turn + 1) // rounds - samples * turn // rounds for turn in range(rounds)]

    def _verified(self, arena: Arena, entrant: Entrant, contender: Contender, call: int) -> float:
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
        layout = contender.result(0).l.layout
        ceilings, state = run.backend.ceilings(run.dtype, arena.threads), run.backend.conditions()
        return Row(
            contender=entrant.name,
            spec=contender.spec,
            n=arena.n,
            batch=arena.batch,
            dtype=run.dtype,
            protocol=run.venue.protocols[protocol],
            samples=len(seconds),
            seconds=sample.median,
            spread=sample.spread,
            floor_seconds=run.venue.floor(protocol, arena.threads),
            roofline_seconds=roofline_seconds(arena.n, arena.batch, layout, ceilings),
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

    def _tell(self, rows: Iterable[Row]) -> None:
        label = self._run.label(self._arena)
        for row in rows:
            self._run.report(f"{label}: {row.contender:24} {row.gflops:10,.1f} GFLOP/s {row.protocol}, {row.spec}")
        taken = ([second for timing, _ in turns for second in timing.seconds] for turns in self._taken.values())
        if warning := busy_warning(map(drift, taken)):
            self._run.report(f"{label}: {warning}")
